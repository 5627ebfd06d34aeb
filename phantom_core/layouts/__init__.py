"""Ways to split a hidden layer over ranks, one file each."""
