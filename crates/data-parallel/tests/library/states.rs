//! What networks and trainers hold, compared: to the bit, or by differences.

use anyhow::{Result, ensure};
use candle_core::{DType, Tensor};
use data_parallel::{DataParallel, Trainer};

use crate::kit::{formula_tensor, largest_difference};

pub type State = Vec<(String, Tensor)>;
/// Tensors as bits.
pub type Bits = Vec<(String, Vec<u8>)>;

/// Everything that training goes on with, of all replicas.
pub fn everything(net: &DataParallel, trainer: &Trainer) -> Result<Bits> {
    let mut all = trainer.state_dict()?;
    for i in 0..net.devices().len() {
        let of_replica = of_replica(net, i)?.into_iter();
        all.extend(of_replica.map(|(name, tensor)| (format!("{name} {i}"), tensor)));
    }
    let bytes = |t: &Tensor| -> Result<Vec<u8>> {
        let values: Vec<f64> = t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        Ok(values.into_iter().flat_map(f64::to_le_bytes).collect())
    };
    all.iter()
        .map(|(name, t)| Ok((name.clone(), bytes(t)?)))
        .collect()
}

pub fn same(what: &str, a: &Bits, b: &Bits) -> Result<()> {
    ensure!(
        a.len() == b.len(),
        "{what}: {} and {} tensors",
        a.len(),
        b.len()
    );
    for ((name, a), (of, b)) in a.iter().zip(b) {
        ensure!(name == of && a == b, "{what}: {name} is not the same");
    }
    Ok(())
}

/// Parameters and buffers of a replica.
pub fn of_replica(net: &DataParallel, i: usize) -> Result<State> {
    let mut state = net.state_dict()?;
    for (name, tensor) in &mut state {
        *tensor = net.parameter(name, i)?;
    }
    Ok(state)
}

/// The largest difference of each tensor of two states, with its name.
pub fn differences<'a>(
    a: &'a [(String, Tensor)],
    b: &[(String, Tensor)],
) -> Result<Vec<(&'a str, f32)>> {
    let floats = |tensor: &Tensor| tensor.to_dtype(DType::F32);
    let names = |state: &[(String, Tensor)]| state.iter().map(|(name, _)| name.clone()).collect();
    let names: [Vec<String>; 2] = [names(a), names(b)];
    ensure!(names[0] == names[1] && !a.is_empty(), "{names:?}");
    let pairs = a.iter().zip(b);
    let differences = pairs.map(|((name, a), (_, b))| {
        let apart = largest_difference(&floats(a)?, &floats(b)?)?;
        Ok((name.as_str(), apart))
    });
    differences.collect()
}

/// Checks that no tensor of two states differs by more than `limit`.
pub fn near(what: &str, a: &[(String, Tensor)], b: &[(String, Tensor)], limit: f32) -> Result<()> {
    for (name, apart) in differences(a, b)? {
        ensure!(apart <= limit, "{what}: {name}: {apart}");
    }
    Ok(())
}

/// Sets all parameters, except those of some layers, to numbers of the formula with this standard deviation.
pub fn draw(net: &DataParallel, std: f64, as_they_are: &[&str]) -> Result<()> {
    let mut state = net.state_dict()?;
    let is_drawn = |name: &str| !as_they_are.contains(&name.split('.').next().unwrap_or(name));
    let drawn = state.iter_mut().filter(|(name, _)| is_drawn(name));
    for (s, (_, tensor)) in (0..).zip(drawn) {
        *tensor = formula_tensor(s, std, tensor.dims())?;
    }
    Ok(net.load_state_dict(&state)?)
}
