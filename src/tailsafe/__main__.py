"""`python -m tailsafe`: the program, where its script is not on the path."""

from tailsafe.cli import main

if __name__ == "__main__":
    main()
