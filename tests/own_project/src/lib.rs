//! Programs of one's own on `data-parallel`: see tests.
