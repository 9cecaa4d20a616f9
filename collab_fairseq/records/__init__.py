"""Records of runs: every number in a table or a README comes from one."""
