"""The only door to a processor: loads cubins, launches kernels, runs worker processes."""
