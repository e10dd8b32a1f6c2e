"""A whole VGG, as S5 has it: rows of its table, layers, pools, causes."""
