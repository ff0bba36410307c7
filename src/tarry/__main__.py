"""`python -m tarry` is `tarry`."""

from tarry.cli.app import main

if __name__ == "__main__":
    main()
