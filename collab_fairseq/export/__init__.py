"""A trained model for those who use it: as a folder of its own, and for other engines.

One file a target, with ``export(source, output, …)``, which writes the folder whole or not at all. ExportError: what
the target lacks or what does not fit, by name, or the folder cannot be written. TranslationError: a package is missing.
"""
