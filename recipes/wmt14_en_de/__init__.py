"""WMT14 English-German: `python -m recipes wmt14_en_de`."""
