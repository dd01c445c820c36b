"""The original: found, identified and wrapped, with its weights and the recorder of the goldens.

Importing this package loads nothing of JAX; the modules that need it say so by importing it themselves.
"""
