"""`python -m phiseg`."""

from phiseg.cli.main import main

if __name__ == "__main__":
    main()
