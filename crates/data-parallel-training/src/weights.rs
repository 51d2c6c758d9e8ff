//! Parameters in files: safetensors with PyTorch's names and layouts.
//!
//! A file is checked, not trusted: each tensor that the network has must be there in its shape,
//! and no other.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use candle_core::safetensors::Load;
use candle_core::{DType, Device, Result, Tensor};
use devices::{Context, bail, ensure, wrap};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;

use crate::files::{self, quote};
use crate::values::with_values;

/// The longest header that is read: some hundred thousand tensors have it.
const LONGEST_HEADER: u64 = 16 << 20;
/// A header has this text once for each tensor: inside a string, a backslash stands before each quotation mark.
const OF_A_TENSOR: &[u8] = b"\"data_offsets\"";

/// Reads the tensors named in `expected`, in that order, on the CPU; floats become `f32`.
///
/// # Errors
/// If the file cannot be read, or a tensor is missing, left over, or has another shape or kind
/// of number than the one in `expected`; the message names it.
pub fn load(path: &Path, expected: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
    let file = || format!("cannot read parameters from {}", path.display());
    let opened = files::open(path).with_context(file)?;
    let bytes = read(opened).with_context(file)?;
    let mut found = tensors_of(&bytes).with_context(file)?;
    settle_counts(&mut found, expected)?;
    take(found, expected).with_context(file)
}

/// The tensors of a file, each with its name in an error.
fn tensors_of(bytes: &[u8]) -> Result<HashMap<String, Tensor>> {
    let file = SafeTensors::deserialize(bytes).map_err(wrap)?;
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let loaded = view.load(&Device::Cpu);
        let tensor = loaded.with_context(|| format!("tensor {}", quote(&name)))?;
        Ok((name, tensor))
    });
    tensors.collect()
}

/// The last part of the name of what a batch norm counts.
pub const COUNT: &str = "num_batches_tracked";

/// The last part of the name of its running variances.
const VARIANCE: &str = "running_var";

/// True if a tensor is a batch norm's count: PyTorch's files have it, and nothing computes with it.
///
/// ```
/// assert!(data_parallel_training::weights::is_count("bn1.num_batches_tracked"));
/// assert!(!data_parallel_training::weights::is_count("my_num_batches_tracked"));
/// ```
pub fn is_count(name: &str) -> bool {
    name.rsplit('.').next() == Some(COUNT)
}

/// Makes counts of batch norms fit: candle's norm has none, and older files of PyTorch have none. One that the network
/// does not have is left out, and one that is missing is the network's own.
///
/// # Errors
/// If there is no memory left for a copy.
pub fn settle_counts(
    found: &mut HashMap<String, Tensor>,
    expected: &[(String, Tensor)],
) -> Result<()> {
    let mean_beside = |count: &str| format!("{}running_mean", count.trim_end_matches(COUNT));
    found.retain(|name, _| {
        has(expected, name) || !(is_count(name) && has(expected, &mean_beside(name)))
    });
    for (name, own) in expected.iter().filter(|(name, _)| is_count(name)) {
        if !found.contains_key(name) {
            found.insert(name.clone(), own.copy()?.detach());
        }
    }
    Ok(())
}

fn has(tensors: &[(String, Tensor)], name: &str) -> bool {
    tensors.iter().any(|(of, _)| of == name)
}

/// The tensors of `found` in the order of `expected`, as [`load`] those of a file.
///
/// # Errors
/// As [`load`].
pub fn take(
    mut found: HashMap<String, Tensor>,
    expected: &[(String, Tensor)],
) -> Result<Vec<Tensor>> {
    let tensors = take_all(&mut found, expected)?;
    if let Some(name) = found.keys().min() {
        let name = quote(name);
        bail!("there is a tensor {name}, the network has no parameter of that name");
    }
    Ok(tensors)
}

/// The bytes of a safetensors file. Its header is read first: a file that is longer or shorter than its header says
/// takes no memory.
pub fn read(mut file: File) -> Result<Vec<u8>> {
    let len = file.metadata()?.len();
    let mut bytes = Vec::new();
    (&mut file).take(9).read_to_end(&mut bytes)?;
    // a header begins with a brace behind its length, which may have any bytes
    if bytes.get(8) != Some(&b'{') {
        match bytes[..] {
            [b'P', b'K', 3, 4, ..] | [0x80, 2, ..] => bail!(
                "this is PyTorch's own format, expected safetensors; convert it in Python: \
                 safetensors.torch.save_file(torch.load(FILE), \"model.safetensors\")"
            ),
            [0x1f, 0x8b, ..] => bail!("this file is gzip-compressed; decompress it"),
            _ => (),
        }
    }
    let header = bytes
        .first_chunk()
        .map_or(u64::MAX, |first| u64::from_le_bytes(*first));
    ensure!(
        (1..=LONGEST_HEADER.min(len.saturating_sub(8))).contains(&header),
        "this is no safetensors file, or it is damaged"
    );
    (&mut file).take(header - 1).read_to_end(&mut bytes)?;
    let metadata: Metadata = serde_json::from_slice(&bytes[8..])
        .map_err(wrap)
        .context("its header is damaged")?;
    // the parser keeps only the last of several tensors with the same name
    let tensors = bytes
        .windows(OF_A_TENSOR.len())
        .filter(|text| *text == OF_A_TENSOR)
        .count();
    let names = metadata.offset_keys().len();
    ensure!(
        tensors == names,
        "its header has {tensors} tensors with {names} different names"
    );
    let declared = (metadata.data_len() as u64).saturating_add(8 + header);
    ensure!(
        len == declared,
        "the file has {len} bytes, its header declares {declared}"
    );
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// An error if the header of a file would be too long to be read.
pub(crate) fn check_header(bytes: &[u8]) -> Result<()> {
    let first = bytes
        .first_chunk()
        .map_or(0, |first| u64::from_le_bytes(*first));
    ensure!(
        first <= LONGEST_HEADER,
        "the names and shapes of the tensors take {first} bytes, at most {LONGEST_HEADER} can be read; keep fewer tensors"
    );
    Ok(())
}

/// Takes the tensors named in `expected` out of those that were found.
pub fn take_all(
    found: &mut HashMap<String, Tensor>,
    expected: &[(String, Tensor)],
) -> Result<Vec<Tensor>> {
    let take = |(name, like): &(String, Tensor)| match found.remove(name) {
        Some(tensor) => converted(name, &tensor, like),
        None => bail!(
            "there is no tensor {name:?}{}",
            near(found, name, like, expected)
        ),
    };
    expected.iter().map(take).collect()
}

/// A tensor in the type of `like`, if it has its shape and its numbers fit.
fn converted(name: &str, tensor: &Tensor, like: &Tensor) -> Result<Tensor> {
    if tensor.dims() != like.dims() {
        let found = tensor.dims();
        let expected = like.dims();
        bail!("tensor {name:?} has shape {found:?}, expected {expected:?}");
    }
    let found = tensor.dtype();
    let expected = like.dtype();
    if found.is_float() != expected.is_float() {
        bail!("tensor {name:?} has type {found:?}, expected {expected:?}");
    }
    let values = tensor.to_dtype(expected)?;
    let fits = found == expected
        || if expected.is_float() {
            all_finite(&values)? || !all_finite(tensor)?
        } else {
            as_f64(&values)? == as_f64(tensor)?
        };
    ensure!(
        fits,
        "tensor {name:?} has type {found:?} and numbers that are too large for {expected:?}"
    );
    check_numbers(name, &values)?;
    Ok(values)
}

fn as_f64(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// The tensor that was found in place of a missing one, and what to do where all have one more part before their name.
fn near(
    found: &HashMap<String, Tensor>,
    name: &str,
    like: &Tensor,
    expected: &[(String, Tensor)],
) -> String {
    // in the same order each time, which a map has not
    let mut others: Vec<&str> = found.keys().map(String::as_str).collect();
    others.retain(|other| !has(expected, other));
    others.sort_unstable();
    // such as "module." of PyTorch's DataParallel
    let prefix = others.iter().find_map(|other| {
        let prefix = other.strip_suffix(name)?;
        prefix.ends_with('.').then_some(prefix)
    });
    if let Some(prefix) = prefix {
        let is_there = |name: &str| found.contains_key(&format!("{prefix}{name}"));
        let mut names = expected.iter().map(|(name, _)| name);
        let all = names.all(|name| is_there(name) || is_count(name));
        let is = quote(&format!("{prefix}{name}"));
        return if all {
            let prefix = quote(prefix);
            format!(
                ", but {is}: all names begin with {prefix}. Read the file with candle_core::safetensors::load, take \
                 {prefix} off the names, and set the tensors with load_state_dict"
            )
        } else {
            format!(", but {is}")
        };
    }
    let (layer, last) = name.rsplit_once('.').unwrap_or(("", name));
    others.retain(|other| {
        let (other_layer, other_last) = other.rsplit_once('.').unwrap_or(("", other));
        let has_part = other_layer == layer || other_last == last;
        let is_part = name
            .strip_suffix(other)
            .is_some_and(|rest| rest.ends_with('.'));
        is_part || has_part && found[*other].dims() == like.dims()
    });
    others
        .iter()
        .min_by_key(|other| other.len().abs_diff(name.len()))
        .map_or(String::new(), |other| format!(", but {}", quote(other)))
}

/// An error, if an f32 is NaN or infinite, or a variance is below 0.
pub fn check_numbers(name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype() != DType::F32 {
        return Ok(());
    }
    ensure!(
        all_finite(tensor)?,
        "tensor {name:?} contains NaN or infinity"
    );
    if name.rsplit(['.', ' ']).next() == Some(VARIANCE) {
        let first_below = |values: &[f32]| values.iter().copied().find(|v| *v < 0.0);
        if let Some(value) = with_values(tensor, first_below)? {
            bail!("tensor {name:?} contains {value}; expected variances, 0 or more")
        }
    }
    Ok(())
}

/// The first f32 of a tensor that is NaN, or above `limit` without its sign; with [`f32::MAX`] the first that is not finite.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use data_parallel_training::weights::first_beyond;
/// let values = Tensor::new(&[0f32, -9.0, f32::INFINITY], &Device::Cpu)?;
/// assert_eq!(first_beyond(&values, 5.0)?, Some(-9.0));
/// assert_eq!(first_beyond(&values, f32::MAX)?, Some(f32::INFINITY));
/// assert_eq!(first_beyond(&values.narrow(0, 0, 2)?, f32::MAX)?, None);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If a device fails.
pub fn first_beyond(tensor: &Tensor, limit: f32) -> Result<Option<f32>> {
    if tensor.dtype() != DType::F32 || tensor.elem_count() == 0 {
        return Ok(None);
    }
    let is_within = |value: f32| value.abs() <= limit;
    if !tensor.device().is_cpu() {
        // one number is copied, and not all
        let within = tensor.detach().abs()?.le(limit)?.to_dtype(DType::F32)?;
        if within.flatten_all()?.min(0)?.to_scalar::<f32>()? == 1.0 {
            return Ok(None);
        }
    }
    with_values(tensor, |values| {
        values.iter().copied().find(|value| !is_within(*value))
    })
}

fn all_finite(tensor: &Tensor) -> Result<bool> {
    match tensor.dtype() {
        DType::F32 => with_values(tensor, |values| values.iter().all(|v| v.is_finite())),
        _ => Ok(as_f64(tensor)?.iter().all(|v| v.is_finite())),
    }
}

/// Writes named tensors; a file of that name appears whole or not at all.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("model.safetensors");
/// let model = [("b4".to_string(), Tensor::ones(10, DType::F32, &Device::Cpu)?)];
/// data_parallel_training::weights::save(&path, &model)?;
/// assert_eq!(data_parallel_training::weights::load(&path, &model)?[0].to_vec1::<f32>()?, [1.0; 10]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If it cannot be written; and if a number is NaN or infinite, because [`load`] would refuse the file. Then a file that
/// was there stays.
pub fn save(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let name = path.display().to_string();
    let bytes = to_finite_bytes(&name, tensors)?;
    files::write(path, &bytes).with_context(|| format!("cannot write {name}"))
}

/// The bytes of a file that is called `name` in errors, if all numbers are finite.
///
/// # Errors
/// If a number is NaN or infinite, or a device fails.
pub fn to_finite_bytes(name: &str, tensors: &[(String, Tensor)]) -> Result<Vec<u8>> {
    check_all_numbers(tensors).with_context(|| format!("{name} is not written"))?;
    to_bytes(tensors, None).with_context(|| format!("cannot write {name}"))
}

/// An error that names the first tensor with a float that is NaN or infinite, or with a variance below 0.
///
/// # Errors
/// As it says.
pub fn check_all_numbers(tensors: &[(String, Tensor)]) -> Result<()> {
    tensors
        .iter()
        .try_for_each(|(name, tensor)| check_numbers(name, tensor))
}

/// The bytes of a safetensors file of named tensors, which `metadata` can say more about.
///
/// # Errors
/// If a device fails.
pub fn to_bytes(
    tensors: &[(String, Tensor)],
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>> {
    let mut on_host = Vec::new();
    for (name, tensor) in tensors {
        on_host.push((name.as_str(), tensor.to_device(&Device::Cpu)?));
    }
    Ok(safetensors::serialize(on_host, metadata)?)
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
        let large = (b1().1.to_dtype(DType::F64)? * 1e39)?;
        let inf = (b1().1 / 0.0)?;
        let misshapen = "\"W1\" has shape [3, 2], expected [2, 3]";
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("init.safetensors");
        for (found, words) in [
            (vec![w1()], "no tensor \"b1\""),
            (vec![w1(), b1(), named("W9", (1, 1))], "a tensor \"W9\""),
            (vec![named("W1", (3, 2)), b1()], misshapen),
            (vec![w1(), other(counter)], "\"b1\" has type I64, expected"),
            (vec![w1(), other(inf)], "\"b1\" contains NaN or infinity"),
            (
                vec![w1(), other(large)],
                "\"b1\" has type F64 and numbers that are too large for F32",
            ),
            (
                vec![w1(), named("b2", (1, 3))],
                "no tensor \"b1\", but \"b2\"",
            ),
        ] {
            files::write(&path, &to_bytes(&found, None)?)?;
            let error = format!("{:#}", load(&path, &[w1(), b1()]).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        Ok(())
    }

    /// PyTorch's wrappers put a part before all names.
    #[test]
    fn what_is_near_a_missing_tensor_is_shown() -> Result<()> {
        let network = [named("a.weight", (2, 3)), named("a.bias", (1, 3))];
        let says = |names: [&str; 2]| {
            let mut found = network
                .clone()
                .map(|(_, tensor)| tensor)
                .into_iter()
                .zip(names);
            let found = found
                .by_ref()
                .map(|(tensor, name)| (name.to_owned(), tensor));
            take(found.collect(), &network).unwrap_err().to_string()
        };
        for prefix in ["module.", "_orig_mod.", "model."] {
            let [weight, bias] = ["a.weight", "a.bias"].map(|name| format!("{prefix}{name}"));
            let all = format!(
                "no tensor \"a.weight\", but \"{prefix}a.weight\": all names begin with \"{prefix}\". Read the file"
            );
            let said = says([&weight, &bias]);
            assert!(said.contains(&all), "{said}");
            let said = says([&weight, "a.bias"]);
            assert!(
                said.ends_with(&format!(", but \"{prefix}a.weight\"")),
                "{said}"
            );
        }
        // of the layer alone, and of another layer
        let said = says(["weight", "bias"]);
        assert!(
            said.ends_with("no tensor \"a.weight\", but \"weight\""),
            "{said}"
        );
        let said = says(["b.weight", "a.bias"]);
        assert!(said.ends_with(", but \"b.weight\""), "{said}");
        let said = says(["c", "d"]);
        assert!(said.ends_with("no tensor \"a.weight\""), "{said}");
        Ok(())
    }

    #[test]
    fn integers_keep_their_values() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("table.safetensors");
        let table = |values: &[i64]| -> Result<_> {
            Ok(("t".to_owned(), Tensor::new(values, &Device::Cpu)?))
        };
        let own = [("t".to_owned(), Tensor::new(&[0u32, 0], &Device::Cpu)?)];
        save(&path, &[table(&[7, 1 << 31])?])?;
        assert_eq!(load(&path, &own)?[0].to_vec1::<u32>()?, [7, 1 << 31]);
        save(&path, &[table(&[7, -1])?])?;
        let error = load(&path, &own).unwrap_err().to_string();
        assert!(error.contains("\"t\" has type I64 and numbers that are too large for U32"));
        Ok(())
    }

    /// candle has no such type; the name of the tensor tells what to leave out.
    #[test]
    fn a_tensor_that_cannot_be_read_is_named() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("mask.safetensors");
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::BOOL, vec![2], &[0, 1]);
        let file = safetensors::serialize([("attn.bias", view.unwrap())], None).unwrap();
        files::write(&path, &file)?;
        let error = load(&path, &[named("w", (1, 1))]).unwrap_err().to_string();
        assert!(error.contains("tensor \"attn.bias\": "), "{error}");
        Ok(())
    }

    /// The first bytes are the length of the header: some are also those of another format.
    #[test]
    fn a_header_may_have_any_length() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("w.safetensors");
        let mut lengths = std::collections::BTreeSet::new();
        for letters in 1..800 {
            let named = [named(&"w".repeat(letters), (1, 1))];
            files::write_unflushed(&path, &to_bytes(&named, None)?)?;
            load(&path, &named).with_context(|| format!("a name of {letters} letters"))?;
            lengths.insert(std::fs::read(&path)?[..2].to_vec());
        }
        assert!(lengths.contains(&vec![0x80, 2]), "as a pickle begins");
        Ok(())
    }
}
