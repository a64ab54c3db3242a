"""The paper's experiments: Tables 1 to 4, A.1 and A.2, Figure 2, and the times of Sec. 5.2."""
