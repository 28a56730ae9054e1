"""`python -m taskgate` is the command line."""

from taskgate.cli.main import main

if __name__ == "__main__":
    main()
