"""Records of runs, the source of every number in a table or README; tables and figures from records."""
