"""The policy that makes room by itself: again and again it looks for moves that pay, tells of them or has them made."""
