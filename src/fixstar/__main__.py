"""``python -m fixstar``: the command line from a source tree, nothing installed."""

from fixstar.cli import main

if __name__ == "__main__":
    main()
