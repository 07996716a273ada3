"""The one base of the errors that are messages for a user."""


class RobustzooError(ValueError):
    """What was given, what was expected, and the next step, in words.

    A subclass exists only where some caller reacts to it in another way.
    """
