//! The house stands as ARCHITECTURE.md says: its invariants, read from the source.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, Command};

use crate::kit::root;

trials![
    imports_run_downwards,
    scratch_is_plain,
    scratch_is_no_longer_than_the_page,
    the_training_of_concise_is_a_page,
    each_public_name_of_the_library_has_a_page,
    what_is_not_tested_has_no_tests,
    unsafe_stands_only_where_it_may_and_says_why,
    functional_knows_no_network_and_collective_no_gradient,
    only_dataset_opens_datasets_and_only_collective_talks,
    libraries_print_nothing_and_name_no_option,
    every_operation_is_compared_with_a_reference,
    no_test_is_ignored_without_a_reason,
];

/// Each crate, and what it may use of ours: of the crates below `data-parallel` their last word.
pub const IMPORTS: [(&str, &str); 13] = [
    ("data-parallel-devices", ""),
    ("data-parallel-training", "devices"),
    ("data-parallel-functional", "devices"),
    ("data-parallel-collective", "devices"),
    ("data-parallel", "collective devices functional training"),
    ("dataset", "devices training"),
    ("d2l", "devices functional training"),
    ("run", "d2l dataset devices functional training"),
    ("scratch", "d2l dataset functional run"),
    ("concise", "d2l data-parallel dataset functional run"),
    (
        "lab",
        "collective d2l dataset devices functional run scratch",
    ),
    ("notebook", ALL),
    ("xtask", ALL),
];
const ALL: &str =
    "devices training functional collective data-parallel dataset d2l run scratch concise";

/// The crates for programs of one's own.
const LIBRARIES: [&str; 5] = [
    "data-parallel-devices",
    "data-parallel-training",
    "data-parallel-functional",
    "data-parallel-collective",
    "data-parallel",
];

/// The Rust files below a folder of the repository.
pub fn files(folder: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("{folder:?}"))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    ensure!(!found.is_empty(), "no Rust file below {folder}");
    Ok(found)
}

fn every_file() -> Result<Vec<PathBuf>> {
    Ok([files("crates")?, files("examples")?, files("tests")?].concat())
}

/// The folder of a crate's code.
pub fn src(krate: &str) -> String {
    format!("crates/{krate}/src")
}

fn source(krate: &str) -> Result<String> {
    all_of(&src(krate))
}

fn all_of(folder: &str) -> Result<String> {
    let texts = files(folder)?.into_iter().map(fs::read_to_string);
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// A file without its comments.
fn code(text: &str) -> String {
    let code = |line| str::split(line, "//").next().unwrap_or(line);
    text.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// The crates of ours that a crate depends on (tests not counted).
fn imports(krate: &str) -> Result<Vec<String>> {
    let manifest = fs::read_to_string(root().join("crates").join(krate).join("Cargo.toml"))?;
    let section = manifest.split("\n[dependencies]").nth(1);
    let section = section.context("no dependencies")?.split("\n[").next();
    let lines = section.unwrap_or_default().lines();
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
    let names = names.filter(|name| IMPORTS.iter().any(|(krate, _)| krate == name));
    Ok(names.map(str::to_owned).collect())
}

fn imports_run_downwards() -> Result<()> {
    for (krate, allowed) in IMPORTS {
        for import in imports(krate)? {
            let name = import.strip_prefix("data-parallel-").unwrap_or(&import);
            let may = allowed.split(' ').any(|allowed| allowed == name);
            ensure!(may, "{krate} uses {import}");
        }
    }
    Ok(())
}

/// Checks that none of the words is in a text.
fn has_none(what: &str, text: &str, words: &[&str]) -> Result<()> {
    let found = words.iter().find(|word| text.contains(**word));
    ensure!(found.is_none(), "{what} has {found:?}");
    Ok(())
}

fn scratch_is_plain() -> Result<()> {
    let code = code(&source("scratch")?).replace("#[cfg(test)]", "");
    let words = ["unsafe", "cudarc", "candle_nn", "cfg", "rayon", "thread::"];
    has_none("scratch", &code, &words)
}

/// The functions of `scratch`, and the lines that each body may have; comments are not counted.
fn scratch_is_no_longer_than_the_page() -> Result<()> {
    const LINES: [(&str, usize); 9] = [
        ("init_params", 13),
        ("lenet", 12),
        ("loss", 1),
        ("get_params", 4),
        ("replicas", 4),
        ("allreduce", 8),
        ("split_batch", 13),
        ("train_batch", 16),
        ("train", 22),
    ];
    let text = root().join("crates/scratch/src/lib.rs");
    let text = code(&fs::read_to_string(text)?);
    let lines: Vec<&str> = text.lines().collect();
    let mut limits = LINES.iter();
    for (i, line) in lines.iter().enumerate() {
        let Some((_, function)) = line.split_once("fn ") else {
            continue;
        };
        let (name, most) = limits.next().context("another function")?;
        ensure!(function.starts_with(&format!("{name}(")), "{line}");
        let mut body = lines[i..].iter().skip_while(|line| !line.ends_with('{'));
        body.next();
        let body = body.take_while(|line| **line != "}");
        let count = body.filter(|line| !line.trim().is_empty()).count();
        ensure!(count <= *most, "{count} lines: {line}");
    }
    ensure!(limits.next().is_none(), "a function is missing");
    Ok(())
}

/// Gluon's function has eighteen lines.
fn the_training_of_concise_is_a_page() -> Result<()> {
    let text = code(&fs::read_to_string(
        root().join("crates/concise/src/train.rs"),
    )?);
    let (_, function) = text.split_once("pub fn train").context("no train")?;
    let lines = function.lines().filter(|line| !line.trim().is_empty());
    let count = lines.count();
    ensure!(count <= 30, "train has {count} lines");
    let words = ["Disagreement", "abort", "into_inner", "std::"];
    has_none("concise::train", &text, &words)
}

/// The names that a program can import from `data-parallel`: those of its root and of its prelude, beside candle's.
const SURFACE: &str = "
    AdamW Algorithm Attention AvgPool2d Batch BatchNorm2d BufferRule Checkpoints Conv2d ConvTranspose2d Count
    DataIter DataParallel Dropout Embedding Epoch Error Examples Flatten Gelu GlobalAvgPool2d GroupNorm Gru
    Initializer LayerNorm Linear Link Lstm MaxPool2d Minibatches Network Nhwc Optimizer Place Processes ReduceOn
    Relu Relu6 Replication Result RmsNorm Sequential Sgd Sigmoid Silu Slice Step Tanh Trainer Upsample Value
    World
    all_examples binary_cross_entropy buffer candle candle_fn check_gradients cross_entropy devices evaluate
    evaluate_accuracy example_rng launch layers masked_cross_entropy network_fn normal predict prelude rng
    schedule squared_error uniform";
/// They stand in signatures alone: of `mean_over`, of `World::new`, of a field of `Replication`.
const IN_SIGNATURES: [&str; 3] = ["Count", "Place", "ReduceOn"];

/// A name is public for ever. So each stands on a page or in an example, and another one is added on purpose.
fn each_public_name_of_the_library_has_a_page() -> Result<()> {
    let expected: BTreeSet<&str> = SURFACE.split_whitespace().collect();
    ensure!(expected.len() <= 74, "{} names", expected.len());
    let of_candle = [
        "DType",
        "Device",
        "Init",
        "Module",
        "ModuleT",
        "Tensor",
        "Var",
        "VarBuilder",
        "candle_core",
        "candle_nn",
    ];
    let mut found = BTreeSet::new();
    for file in ["lib.rs", "prelude.rs"] {
        let text = fs::read_to_string(root().join(src("data-parallel")).join(file))?;
        let shown = code(&text).replace("#[doc(hidden)]\npub use", "hidden");
        for statement in shown.split(';') {
            if let Some((_, module)) = statement.split_once("pub mod ") {
                found.insert(module.to_owned());
            }
            if let Some((_, paths)) = statement.split_once("pub use ") {
                found.extend(
                    leaves(paths)
                        .iter()
                        .map(|path| split_last(path).1.to_owned()),
                );
            }
        }
    }
    let found: BTreeSet<&str> = found
        .iter()
        .map(String::as_str)
        .filter(|name| !of_candle.contains(name))
        .collect();
    let differ: Vec<_> = found.symmetric_difference(&expected).collect();
    ensure!(
        differ.is_empty(),
        "not in SURFACE, or there alone: {differ:?}"
    );
    let mut pages = fs::read_to_string(root().join("crates/data-parallel/README.md"))?;
    for entry in fs::read_dir(root().join("notebooks-md"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "md") {
            pages += &fs::read_to_string(path)?;
        }
    }
    for folder in [
        "examples",
        "crates/data-parallel/examples",
        "tests/own_project",
    ] {
        pages += &all_of(folder)?;
    }
    let words: BTreeSet<&str> = pages
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let unused: Vec<_> = expected
        .iter()
        .filter(|name| !words.contains(*name) && !IN_SIGNATURES.contains(name))
        .collect();
    ensure!(
        unused.is_empty(),
        "on no page and in no example: {unused:?}"
    );
    Ok(())
}

/// The paths of a `use`: those of `a::{b, c::d}` are `a::b` and `a::c::d`, and that of `a::{self}` is `a`.
pub fn leaves(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.trim().trim_end_matches("::self").to_owned()];
    };
    let mut depth = 0;
    let parts = inside.trim_end().trim_end_matches('}').split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    let leaves = parts.flat_map(|part| leaves(&format!("{before}{part}")));
    leaves.collect()
}

/// What comes before the last name of a path, and that name.
pub fn split_last(path: &str) -> (&str, &str) {
    path.rsplit_once("::").unwrap_or(("", path))
}

/// A target that is no test has no tests. So nothing is linked that runs none, and no test is left out.
fn what_is_not_tested_has_no_tests() -> Result<()> {
    let mut found = 0;
    for (krate, _) in IMPORTS {
        let manifest = root().join("crates").join(krate).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest)?;
        let targets = manifest
            .split("\n[")
            .filter(|part| part.contains("test = false"));
        for target in targets {
            let of = |key: &str| {
                let mut lines = target.lines();
                lines.find_map(|line| line.strip_prefix(key)?.split('"').nth(1))
            };
            let path = match (of("path = "), target.starts_with("lib]")) {
                (Some(path), _) => format!("crates/{krate}/{path}"),
                (None, true) => src(krate),
                (None, false) => anyhow::bail!("{krate}: a target without a path"),
            };
            let text = if path.ends_with(".rs") {
                fs::read_to_string(root().join(&path))?
            } else {
                all_of(&path)?
            };
            has_none(&path, &text, &["#[test]", "#[cfg(test)]", "\nmod tests"])?;
            found += 1;
        }
    }
    ensure!(found > 5, "{found} targets have test = false");
    Ok(())
}

fn unsafe_stands_only_where_it_may_and_says_why() -> Result<()> {
    for file in every_file()? {
        let text = fs::read_to_string(&file)?;
        let relative = file.strip_prefix(root())?.to_owned();
        let may = [
            "crates/data-parallel-functional",
            "crates/data-parallel-collective",
            "crates/data-parallel-devices/src/peers.rs",
            "crates/data-parallel-devices/src/streams.rs",
        ];
        let may = may.iter().any(|folder| relative.starts_with(folder));
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            let block = ["unsafe {", "unsafe fn ", "unsafe impl "]
                .iter()
                .any(|u| code.contains(u) && !code.contains('"'));
            if block {
                ensure!(may, "{relative:?}:{}: unsafe", i + 1);
                let above = &lines[i.saturating_sub(8)..i];
                let says_why = |l: &&str| l.contains("// Safety:") || l.contains("/// # Safety");
                let says_why = above.iter().any(says_why);
                ensure!(says_why, "{relative:?}:{}: no Safety sentence", i + 1);
            }
        }
    }
    Ok(())
}

fn functional_knows_no_network_and_collective_no_gradient() -> Result<()> {
    for (krate, words) in [
        (
            "data-parallel-functional",
            ["resnet", "dataset::", "lenet("],
        ),
        (
            "data-parallel-collective",
            ["candle_core::var", "gradstore", "backward("],
        ),
    ] {
        has_none(krate, &code(&source(krate)?).to_lowercase(), &words)?;
    }
    Ok(())
}

fn only_dataset_opens_datasets_and_only_collective_talks() -> Result<()> {
    // the ways to talk themselves, which `collective::mpi` and its like wrap
    let to_talk = ["mpi::traits", "mpi::initialize", "cudarc::nccl", "std::net"];
    for (only, words) in [
        ("dataset", &["hf_hub", "candle_datasets", "idx3-ubyte"][..]),
        ("data-parallel-collective", &to_talk),
    ] {
        for (krate, _) in IMPORTS.iter().filter(|(krate, _)| *krate != only) {
            has_none(krate, &code(&source(krate)?), words)?;
        }
    }
    Ok(())
}

/// A message of a library says what to change in a program of one's own, which has no such options. One line is printed:
/// where the check of gradients takes over five seconds, a reader would think that the program hangs.
fn libraries_print_nothing_and_name_no_option() -> Result<()> {
    let all = concise::Options::augment_args(Command::new("concise"));
    let options = all.get_arguments().filter_map(|option| option.get_long());
    let options: Vec<String> = options.map(|name| format!("--{name}")).collect();
    ensure!(options.len() > 20, "{options:?}");
    let mut words = vec!["println!", "eprint!", "print!("];
    words.extend(options.iter().map(String::as_str));
    for krate in LIBRARIES {
        let files = files(&src(krate))?.into_iter();
        for file in files.filter(|file| !file.ends_with("tests.rs")) {
            let mut text = code(&fs::read_to_string(&file)?);
            if file.ends_with("graph/checked.rs") {
                ensure!(text.matches("eprintln!").count() == 1, "{file:?}");
                text = text.replacen("eprintln!", "", 1);
            }
            has_none(&format!("{file:?}"), &text, &words)?;
        }
    }
    Ok(())
}

/// Those that a value has, and the losses; `add` is an operator, which the tests call `plus`. A random network has it,
/// and `Both` computes it by the reference as well.
fn every_operation_is_compared_with_a_reference() -> Result<()> {
    let functional = root().join("crates/data-parallel-functional/src");
    let values = [
        code(&fs::read_to_string(functional.join("graph/value.rs"))?),
        code(&all_of("crates/data-parallel-functional/src/operations")?),
    ]
    .join("\n");
    let tests = root().join("crates/data-parallel-functional/tests/operations");
    let [networks, single, reference] = ["networks.rs", "single.rs", "reference.rs"]
        .map(|file| fs::read_to_string(tests.join(file)));
    let (networks, reference) = (networks? + &single?, reference?);
    // what attention is told is no operation
    let of_values = values
        .split("\nimpl ")
        .filter(|part| !part.starts_with("Attention {"));
    let lines = of_values.flat_map(str::lines).map(str::trim);
    let functions = lines.filter_map(|line| line.strip_prefix("pub fn "));
    let names = functions.filter_map(|function| function.split('(').next());
    let others = ["new", "dims", "device", "without_kernel"];
    let names = names.filter(|name| !others.contains(name));
    let names: Vec<&str> = names.chain(["add"]).collect();
    ensure!(
        names.len() >= 40 && names.contains(&"squared_error") && names.contains(&"gelu"),
        "{names:?}"
    );
    for name in names {
        let has_reference = reference.contains(&format!("pub fn {name}("));
        ensure!(has_reference, "{name} has no reference");
        let method = if name == "add" { "plus" } else { name };
        let is_random = [format!(".{method}("), format!("Value::{method},")]
            .iter()
            .any(|call| networks.contains(call));
        ensure!(is_random, "{name} is in no random network");
    }
    Ok(())
}

fn no_test_is_ignored_without_a_reason() -> Result<()> {
    for file in files("crates")?.into_iter().chain(files("tests")?) {
        let text = code(&fs::read_to_string(&file)?);
        has_none(&format!("{file:?}"), &text, &[concat!("#[ignore", "]")])?;
    }
    Ok(())
}
