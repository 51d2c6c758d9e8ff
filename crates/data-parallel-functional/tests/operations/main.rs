//! What this crate claims of its operations, a module a claim.

mod against_reference;
mod bits;
mod both;
mod buckets;
mod by_hand;
mod candle;
mod cuts;
mod errors;
mod evaluation;
mod gradient_check;
mod gradient_checks;
mod long_sums;
mod losses;
mod memory_of_parameters;
mod networks;
#[cfg(feature = "cuda")]
mod on_a_gpu;
mod reference;
mod support;
mod synchronized;
mod together;
mod training;
mod views;
