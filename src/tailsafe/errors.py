"""The one exception a caller is expected to meet: bad input, told in one line."""


class InputError(ValueError):
    """Input that cannot be used. The message names the offending place and what is allowed.

    The command line prints it as one line on stderr and exits with code 2.
    """
