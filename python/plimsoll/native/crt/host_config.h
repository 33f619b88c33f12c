// In place of CUDA's header of this name (see `host_defines.h`), which refuses compilers that nvcc cannot work with: nvcc has no
// part in this.

#pragma once
