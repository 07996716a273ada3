"""`python -m robustzoo`, for launchers that start modules (`torchrun --module robustzoo ...`)."""

from robustzoo.cli import main

if __name__ == "__main__":
    main()
