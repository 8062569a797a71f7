"""HAMi: GPUs shared by memory and compute, named by UUID."""
