"""The second processor: executes a kernel's PTX on the CPU and finds what a GPU forgives.

The PTX is that which the compilation of the cubin returned, so what is emulated is what would be
launched. It says nothing of speed.
"""
