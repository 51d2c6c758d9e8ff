//! Small good files, and the ways to damage them.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::Result;
use candle_core::Tensor;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use rand::{Rng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::kit::idx_files;

/// A good file, and how the project reads it.
#[derive(Clone)]
pub struct Sample {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    format: Format,
    /// Gives what comes after the header, decompressed.
    pub read: fn(&Path) -> Result<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Idx,
    Gz,
    Weights,
}

pub struct Damaged {
    pub how: String,
    pub bytes: Vec<u8>,
    /// Whether no reader may accept it.
    pub fatal: bool,
    /// What a reader that accepts it has to find.
    pub payload: Vec<u8>,
}

/// The four files of 12 + 3 images, raw in one folder and compressed in another.
pub fn idx(folder: &Path) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (format, ending) in [(Format::Idx, ""), (Format::Gz, ".gz")] {
        let folder = folder.join(format!("idx{ending}"));
        fs::create_dir(&folder)?;
        for (name, raw) in idx_files(12, 3) {
            let path = folder.join(name + ending);
            let bytes = match format {
                Format::Gz => gzip(&raw),
                _ => raw,
            };
            fs::write(&path, &bytes)?;
            samples.push(Sample {
                path,
                bytes,
                format,
                read: read_idx,
            });
        }
    }
    Ok(samples)
}

fn read_idx(path: &Path) -> Result<Vec<u8>> {
    let data = dataset::load(&dataset::Options {
        data: path.parent().map(dataset::Data::from),
        ..dataset::Options::default()
    })?;
    let name = path.display().to_string();
    let split = match name.contains("train") {
        true => data.train,
        false => data.test,
    };
    Ok(match name.contains("images") {
        true => (0..split.len())
            .flat_map(|i| split.image(i).to_vec())
            .collect(),
        false => (0..split.len()).map(|i| split.label(i)).collect(),
    })
}

/// LeNet's parameters, in the order in which safetensors writes them.
static LENET: LazyLock<Vec<(String, Tensor)>> = LazyLock::new(|| {
    let names = ["W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"].map(str::to_owned);
    let params = scratch::init_params(0).expect("memory");
    let mut tensors: Vec<_> = names.into_iter().zip(params).collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
});

pub fn weights(folder: &Path) -> Result<Vec<Sample>> {
    let path = folder.join("lenet.safetensors");
    run::weights::save(&path, &LENET)?;
    let bytes = fs::read(&path)?;
    Ok(vec![Sample {
        path,
        bytes,
        format: Format::Weights,
        read: read_weights,
    }])
}

fn read_weights(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for tensor in run::weights::load(path, &LENET)? {
        let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(bytes)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    let read = GzDecoder::new(bytes).read_to_end(&mut raw);
    read.expect("our own gzip");
    raw
}

/// What becomes of each compressed file when it holds 306 MB of zeros, and says so in its header.
pub fn bombs(samples: &[Sample]) -> impl Iterator<Item = (&Sample, Damaged)> {
    let compressed = samples.iter().filter(|s| s.format == Format::Gz);
    compressed.map(|sample| (sample, bomb(sample)))
}

fn bomb(sample: &Sample) -> Damaged {
    // gzip allows for the same ten megabytes thirty times
    const PIECE: usize = 13_000 * 784;
    let images = sample.path.to_string_lossy().contains("images");
    let (len, size) = if images { (16, 784) } else { (8, 1) };
    let count = u32::try_from(30 * PIECE / size).expect("not so many");
    let mut head = gunzip(&sample.bytes);
    head.truncate(len);
    head[4..8].copy_from_slice(&count.to_be_bytes());
    Damaged {
        how: format!("{count} times {size} zeros"),
        bytes: [gzip(&head), gzip(&vec![0; PIECE]).repeat(30)].concat(),
        fatal: true,
        payload: Vec::new(),
    }
}

/// Where a raw file's payload begins.
fn header(format: Format, name: &Path, bytes: &[u8]) -> usize {
    match format {
        Format::Idx if name.to_string_lossy().contains("images") => 16,
        Format::Idx => 8,
        Format::Gz => 10,
        Format::Weights => {
            let length = bytes[..8].try_into().expect("eight");
            8 + u64::from_le_bytes(length) as usize
        }
    }
}

/// One of the ways to damage a file.
pub fn damage(sample: &Sample, good: &[u8], rng: &mut ChaCha8Rng) -> Damaged {
    let (format, path) = (sample.format, &sample.path);
    match rng.random_range(0..8) {
        // compressed well, and damaged inside
        0 | 1 if format == Format::Gz => {
            let raw = Sample {
                format: Format::Idx,
                ..sample.clone()
            };
            let mut inside = damage(&raw, &gunzip(good), rng);
            inside.how.insert_str(0, "inside ");
            inside.bytes = gzip(&inside.bytes);
            inside
        }
        0 | 1 if format == Format::Weights => damage_json(good, rng),
        way => {
            let mut bytes = good.to_vec();
            let head = header(format, path, good);
            let (how, first) = damage_bytes(way, &mut bytes, head, rng);
            let payload = match format {
                Format::Gz => gunzip(good).split_off(header(Format::Idx, path, good)),
                _ => bytes.get(head..).unwrap_or_default().to_vec(),
            };
            // every bit of an IDX header counts; elsewhere a flip may leave the values as they are, or finite
            let fatal = first.is_none_or(|first| format == Format::Idx && first < head);
            Damaged {
                how,
                bytes,
                fatal,
                payload,
            }
        }
    }
}

/// Damages some bytes. Returns how, and the first damaged byte; none where every reader must notice the damage.
fn damage_bytes(
    way: usize,
    bytes: &mut Vec<u8>,
    head: usize,
    rng: &mut ChaCha8Rng,
) -> (String, Option<usize>) {
    let len = bytes.len();
    match way {
        0 => {
            let n = rng.random_range(0..len) * usize::from(rng.random_bool(0.8));
            bytes.truncate(n);
            (format!("cut after {n} of {len} bytes"), None)
        }
        1 => {
            let more: u8 = rng.random_range(1..100);
            bytes.extend((0..more).map(|_| rng.random::<u8>()));
            (format!("{more} bytes appended"), None)
        }
        2 => {
            let magic = [
                b"\x89PNG\r\n\x1a\n",
                b"PK\x03\x04\0\0\0\0",
                b"\x1f\x9d\0\0\0\0\0\0",
                b"\x80\x04\x95\0\0\0\0\0",
                &[0xff; 8],
            ];
            let magic = magic.choose(rng).expect("there is one");
            bytes[..8].copy_from_slice(*magic);
            (format!("begins with {magic:?}"), None)
        }
        3 => {
            // a count, a dimension, the length of the header
            let huge = [0u32, 1, 1 << 24, i32::MAX as u32, u32::MAX];
            let huge = *huge.choose(rng).expect("there is one");
            let at = rng.random_range(0..head.min(16) / 4) * 4;
            let same = bytes[at..at + 4] == huge.to_be_bytes();
            bytes[at..at + 4].copy_from_slice(&huge.to_be_bytes());
            (format!("{huge} at {at}"), Some(if same { len } else { at }))
        }
        4 | 5 => {
            let at = rng.random_range(0..if way == 4 { head } else { len });
            let bit = rng.random_range(0..8);
            bytes[at] ^= 1 << bit;
            (format!("bit {bit} of byte {at} flipped"), Some(at))
        }
        _ => {
            let at = rng.random_range(0..len - 4);
            let end = (at + rng.random_range(4..64)).min(len);
            rng.fill(&mut bytes[at..end]);
            (format!("noise in bytes {at} to {end}"), Some(at))
        }
    }
}

/// Damages what a header of safetensors says, or its length.
fn damage_json(good: &[u8], rng: &mut ChaCha8Rng) -> Damaged {
    let head = header(Format::Weights, Path::new(""), good);
    let mut says: Value = serde_json::from_slice(&good[8..head]).expect("our own JSON");
    let tensors = ["W1", "W2", "W3", "W4", "b1", "b2", "b3", "b4"];
    let name = *tensors.choose(rng).expect("there is one");
    let wrong = json!({
        "dtype": ["F64", "F16", "U32", "F4", "float", null],
        "shape": [[], [0], [u64::MAX], [1u64 << 32, 1u64 << 32], [1, 1, -1], vec![1; 10_000], "all"],
        "data_offsets": [
            [0, 0], [0, good.len() - head], [40, 8], [u64::MAX - 3, u64::MAX], [0, 1e30], [-4, 0], [2, 6], [0]
        ],
    });
    let (how, mut text) = match rng.random_range(0..8) {
        0 => ("brackets without end".into(), "[".repeat(100_000)),
        1 => {
            let empty = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
            let many = (0..5_000).map(|i| (format!("t{i}"), empty.clone()));
            says.as_object_mut().expect("an object").extend(many);
            ("5,000 tensors too many".into(), says.to_string())
        }
        2 => {
            let tensor = says.as_object_mut().expect("an object").remove(name);
            says["W9"] = tensor.expect("it is there");
            (format!("{name} is called W9"), says.to_string())
        }
        3 => {
            let text = says.to_string();
            let twice = text.replacen(&format!("\"{name}\""), "\"W1\",\"b1\"", 1);
            (format!("{name} twice"), twice)
        }
        _ => {
            let fields = ["dtype", "shape", "data_offsets"];
            let field = *fields.choose(rng).expect("there is one");
            let values = wrong[field].as_array().expect("it is one");
            let value = values.choose(rng).expect("there is one").clone();
            let how = format!("{name} with {field} {value}");
            says[name][field] = value;
            (how, says.to_string())
        }
    };
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let lies = [0, 0, 0, 0, 1, 8, 1_000_000, 90_000_000, 1 << 40, -9];
    let lie = *lies.choose(rng).expect("there is one");
    let len = (text.len() as u64).wrapping_add_signed(lie);
    let how = format!("{how}, header length {lie} too large");
    let bytes = [&len.to_le_bytes(), text.as_bytes(), &good[head..]].concat();
    Damaged {
        how,
        bytes,
        fatal: true,
        payload: Vec::new(),
    }
}
