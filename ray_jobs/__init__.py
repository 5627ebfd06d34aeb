"""What runs on the cluster: one Ray job per experiment."""
