#pragma once

#include <pybind11/pybind11.h>

void add_cublaslt(pybind11::module_&);
