//! Parameters in files: safetensors with PyTorch's names and layouts.
//!
//! A file is checked, not trusted: each tensor that the network has must be there in its shape,
//! and no other.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};

use crate::atomic;

/// Reads the tensors named in `expected`, in that order, on the CPU; floats become `f32`.
///
/// # Errors
/// If the file cannot be read, or a tensor is missing, left over, or has another shape or kind
/// of number than the one in `expected`; the message names it.
pub fn load(path: &Path, expected: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
    let file = || format!("cannot read parameters from {}", path.display());
    let mut found = candle_core::safetensors::load(path, &Device::Cpu).with_context(file)?;
    let tensors = take_all(&mut found, expected).with_context(file)?;
    if let Some(name) = found.keys().min() {
        bail!(
            "{}: the file has a tensor {name:?}, the network has no parameter of that name",
            file()
        );
    }
    Ok(tensors)
}

/// Takes the tensors named in `expected` out of those that were found.
pub(crate) fn take_all(
    found: &mut HashMap<String, Tensor>,
    expected: &[(String, Tensor)],
) -> Result<Vec<Tensor>> {
    let take = |(name, like): &(String, Tensor)| take(found, name, like);
    expected.iter().map(take).collect()
}

fn take(found: &mut HashMap<String, Tensor>, name: &str, like: &Tensor) -> Result<Tensor> {
    let Some(tensor) = found.remove(name) else {
        bail!("the file has no tensor {name:?}");
    };
    if tensor.dims() != like.dims() {
        let (found, expected) = (tensor.dims(), like.dims());
        bail!("tensor {name:?} has shape {found:?}, expected {expected:?}");
    }
    if tensor.dtype().is_float() != like.dtype().is_float() {
        let (found, expected) = (tensor.dtype(), like.dtype());
        bail!("tensor {name:?} has type {found:?}, expected {expected:?}");
    }
    let tensor = tensor.to_dtype(like.dtype())?;
    check_finite(name, &tensor)?;
    Ok(tensor)
}

/// An error, if a float is NaN or infinite.
pub(crate) fn check_finite(name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype() == DType::F32 {
        let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        ensure!(
            values.iter().all(|value| value.is_finite()),
            "tensor {name:?} contains NaN or infinity"
        );
    }
    Ok(())
}

/// Writes named tensors; a file of that name appears whole or not at all.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("model.safetensors");
/// let model = [("b4".to_string(), Tensor::ones(10, DType::F32, &Device::Cpu)?)];
/// run::weights::save(&path, &model)?;
/// assert_eq!(run::weights::load(&path, &model)?[0].to_vec1::<f32>()?, [1.0; 10]);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If it cannot be written.
pub fn save(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let bytes = to_bytes(tensors, None).with_context(cannot)?;
    atomic::write(path, &bytes).with_context(cannot)
}

/// The bytes of a safetensors file of named tensors, which `metadata` can say more about.
///
/// # Errors
/// If a device fails.
pub fn to_bytes(
    tensors: &[(String, Tensor)],
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>> {
    let tensors = tensors.iter();
    let tensors = tensors.map(|(name, t)| Ok((name.as_str(), t.to_device(&Device::Cpu)?)));
    let tensors: Vec<(&str, Tensor)> = tensors.collect::<candle_core::Result<_>>()?;
    Ok(safetensors::serialize(tensors, metadata)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, dims: (usize, usize)) -> (String, Tensor) {
        let tensor = Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        (name.to_owned(), tensor)
    }

    #[test]
    fn a_tensor_that_does_not_fit_is_named() -> Result<()> {
        let (w1, b1) = (|| named("W1", (2, 3)), || named("b1", (1, 3)));
        let other = |tensor| ("b1".to_owned(), tensor);
        let counter = Tensor::ones((1, 3), DType::I64, &Device::Cpu)?;
        let inf = (b1().1 / 0.0)?;
        let misshapen = "\"W1\" has shape [3, 2], expected [2, 3]";
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("init.safetensors");
        for (found, words) in [
            (vec![w1()], "no tensor \"b1\""),
            (vec![w1(), b1(), named("W9", (1, 1))], "a tensor \"W9\""),
            (vec![named("W1", (3, 2)), b1()], misshapen),
            (
                vec![w1(), other(counter)],
                "\"b1\" has type I64, expected F32",
            ),
            (vec![w1(), other(inf)], "\"b1\" contains NaN or infinity"),
        ] {
            save(&path, &found)?;
            let error = format!("{:#}", load(&path, &[w1(), b1()]).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        Ok(())
    }

    #[test]
    fn a_file_that_is_none_is_named() {
        let error = load(Path::new("nowhere.safetensors"), &[]).unwrap_err();
        assert!(format!("{error:#}").contains("nowhere.safetensors"));
    }
}
