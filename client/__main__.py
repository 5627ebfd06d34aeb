"""`python -m client` is the `ghostwatt` command."""

from client.command import main

if __name__ == "__main__":
    main()
