"""A trained model for those who use it: as a folder of its own, and for other engines. One file a target."""
