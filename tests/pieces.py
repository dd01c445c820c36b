"""A piece of work for another process, in a module that loads quickly there."""


def double(number, tell):
    tell(1)
    return 2 * number
