"""Who runs, in the planner's words: who may be moved, what that loses, and why the others stay."""
