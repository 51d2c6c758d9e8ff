//! The algorithms that were chosen for a GPU's convolutions. The first replica that needs one chooses for all: they
//! round differently. Checkpoints keep the choice.

use devices::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The name of the algorithm for each convolution.
static CHOSEN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The algorithms that were chosen so far: pairs of a convolution and its algorithm. There are none on the CPU.
///
/// ```
/// data_parallel_functional::set_algorithms(&data_parallel_functional::algorithms());
/// ```
pub fn algorithms() -> Vec<(String, String)> {
    lock(&CHOSEN).clone().into_iter().collect()
}

/// Sets these algorithms, so that a run can go on with the same bits. An algorithm that the GPU does not offer is
/// ignored.
pub fn set_algorithms(pairs: &[(String, String)]) {
    lock(&CHOSEN).extend(pairs.iter().cloned());
}

/// The algorithm for `what`. Others that need one wait for `choose`.
#[cfg(feature = "cuda")]
pub(crate) fn algorithm(what: String, choose: impl FnOnce() -> String) -> String {
    lock(&CHOSEN).entry(what).or_insert_with(choose).clone()
}
