"""`python -m robustzoo.cli`, for launchers that start modules (`torchrun --module robustzoo.cli ...`)."""

from robustzoo.cli import main

if __name__ == "__main__":
    main()
