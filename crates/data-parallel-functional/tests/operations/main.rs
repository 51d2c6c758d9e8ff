//! What this crate claims of its operations, a module a claim.

extern crate data_parallel_collective as collective;
extern crate data_parallel_devices as devices;
extern crate data_parallel_functional as functional;

mod against_reference;
mod bits;
mod both;
mod buckets;
mod by_hand;
mod candle;
mod convolutions;
mod cuts;
mod deep;
mod each_minibatch;
mod errors;
mod evaluation;
mod gradient_check;
mod gradient_checks;
mod hook;
mod long_sums;
mod losses;
mod memory_of_parameters;
mod networks;
#[cfg(feature = "cuda")]
mod on_a_gpu;
mod reference;
mod single;
mod support;
mod synchronized;
mod together;
mod training;
mod views;
