// What the libraries use of the driver.
#pragma once

#include "machine.hpp"

namespace emulated {

// The GPU of the calling thread's context, or -1.
int current_gpu();

}  // namespace emulated
