//! No crate, folder or file imports one that imports it: read from the paths in `use` and elsewhere in the code.
//!
//! A `lib.rs` or `mod.rs` is a face: its `pub use` is no import, and a name that it hands on is imported from the file
//! that defines it. `mod` is no import, and what is `#[cfg(test)]` is not read. The code is as rustfmt writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::invariants;
use crate::kit::root;

trials![
    crates_import_in_no_circle,
    files_and_folders_import_in_no_circle,
    imports_are_found,
    circles_and_floors_are_found,
];

/// The crates whose files and folders are checked, with the most floors of each folder. A floor is a step of the
/// longest chain of imports between what is in the folder.
const CRATES: &[(&str, usize)] = &[
    ("collective", 8),
    ("concise", 8),
    ("d2l", 8),
    ("data-parallel", 8),
    ("dataset", 8),
    ("devices", 8),
    ("functional", 8),
    ("notebook", 8),
    ("run", 8),
    ("scratch", 8),
    ("training", 8),
    ("xtask", 8),
];

/// For each crate, folder or file: what it imports, and by which line or path.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// The names from the crate to a module or an item.
type Path = Vec<String>;

/// The file of each module.
type Modules<'a> = BTreeMap<Path, &'a String>;

fn crates_import_in_no_circle() -> Result<()> {
    let mut crates = Graph::new();
    for entry in fs::read_dir(root().join("crates"))? {
        let manifest = fs::read_to_string(entry?.path().join("Cargo.toml"))?;
        let dependency = |line: &str| (line.split('.').next().unwrap_or(line).into(), line.into());
        let name = manifest.split('"').nth(1).context("a name")?;
        crates.insert(name.to_owned(), manifest.lines().map(dependency).collect());
    }
    ensure!(crates["scratch"].contains_key("functional"), "{crates:?}");
    floors(&crates).map(drop)
}

fn files_and_folders_import_in_no_circle() -> Result<()> {
    for (name, most) in CRATES.iter().copied() {
        let src = format!("crates/{name}/src");
        let mut sources = BTreeMap::new();
        for file in invariants::files(&src)? {
            let path = file.strip_prefix(root().join(&src))?.to_string_lossy();
            if !path.contains("tests") && !path.ends_with("case.rs") {
                sources.insert(path.into_owned(), fs::read_to_string(&file)?);
            }
        }
        let files = imports(&sources);
        floors(&files).context(name)?;
        for (folder, graph) in folders(&files) {
            let count = floors(&graph).context(name)?;
            ensure!(count <= most, "{src}/{folder} has {count} floors");
        }
    }
    Ok(())
}

/// The imports between the files of a crate.
fn imports(files: &BTreeMap<String, String>) -> Graph {
    let modules: Modules = files.keys().map(|file| (module(file), file)).collect();
    let (mut handed_on, mut imported) = (BTreeMap::new(), Vec::new());
    for (file, text) in files {
        let is_face = file.ends_with("lib.rs") || file.ends_with("mod.rs");
        for (is_public, written) in paths(&without_tests(text)) {
            let Some(path) = from_the_crate(&module(file), &written, &modules) else {
                continue;
            };
            match path.last() {
                Some(name) if is_public && is_face => {
                    handed_on.insert([module(file), vec![name.clone()]].concat(), path);
                }
                _ => imported.push((file, written, path)),
            }
        }
    }
    let mut graph: Graph = files
        .keys()
        .map(|file| (file.clone(), BTreeMap::new()))
        .collect();
    for (file, written, mut path) in imported {
        let inner = |path: &Path| {
            (0..=path.len())
                .rev()
                .find(|n| modules.contains_key(&path[..*n]))
        };
        let mut n = inner(&path).unwrap_or(0);
        while let Some(defined) = path.get(..=n).and_then(|name| handed_on.get(name)) {
            path = [defined, &path[n + 1..]].concat();
            n = inner(&path).unwrap_or(0);
        }
        let to = modules.get(&path[..n]).filter(|to| **to != file);
        let imports = graph.entry(file.clone()).or_default();
        imports.extend(to.map(|to| ((*to).clone(), written)));
    }
    graph
}

/// The module in a file.
fn module(file: &str) -> Path {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let names = path.split('/').filter(|name| *name != "lib");
    names.map(str::to_owned).collect()
}

/// The code of a file without comments and without what is `#[cfg(test)]`.
fn without_tests(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines();
    let mut code = Vec::new();
    while let Some(line) = lines.next() {
        let start = line.trim_start();
        if start.starts_with("#[cfg(test)]") || start.starts_with("#[cfg(all(test") {
            lines.find(|end| indent(end) == indent(line) && end.ends_with([';', '}', ',']));
        } else {
            code.extend(line.split("//").next());
        }
    }
    code.join("\n")
}

/// The paths in the code, each with whether a `pub use` has it.
fn paths(code: &str) -> Vec<(bool, String)> {
    let mut paths = Vec::new();
    for statement in code.split(';') {
        let before = |at: usize| {
            statement[..at]
                .rsplit('\n')
                .next()
                .unwrap_or_default()
                .trim()
        };
        let import = statement.rfind("use ");
        let import = import.filter(|at| before(*at).is_empty() || before(*at).starts_with("pub"));
        let (code, tree) = statement.split_at(import.unwrap_or(statement.len()));
        let is_public = import.is_some_and(|at| !before(at).is_empty());
        let leaves = leaves(tree.trim_start_matches("use ")).into_iter();
        paths.extend(leaves.map(|path| (is_public, path)));
        let in_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for start in ["crate::", "super::", "self::"] {
            let found = code.match_indices(start).map(|(at, _)| code.split_at(at));
            let found =
                found.filter(|(before, _)| !before.ends_with(in_path) && !before.ends_with("(in "));
            let path =
                |(_, path): (&str, &str)| path.split(|c| !in_path(c)).next().map(str::to_owned);
            paths.extend(found.filter_map(path).map(|path| (false, path)));
        }
    }
    paths
}

/// The paths of a `use`: those of `a::{b, c::d}` are `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
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
    parts
        .flat_map(|part| leaves(&format!("{before}{part}")))
        .collect()
}

/// A path as it is from the crate on; none if it is another crate's.
fn from_the_crate(module: &[String], path: &str, modules: &Modules) -> Option<Path> {
    let names: Path = path.split("::").map(str::to_owned).collect();
    let up = names.iter().take_while(|name| *name == "super").count();
    let is_child = modules.contains_key(&[module, &names[..1]].concat());
    match names[0].as_str() {
        "crate" => Some(names[1..].to_vec()),
        "self" => Some([module, &names[1..]].concat()),
        "super" => Some([&module[..module.len().checked_sub(up)?], &names[up..]].concat()),
        _ => is_child.then(|| [module, &names].concat()),
    }
}

/// For each folder of a crate: the imports between what is in it. A file and the folder of its name are one.
fn folders(files: &Graph) -> BTreeMap<&str, Graph> {
    let mut folders: BTreeMap<&str, Graph> = BTreeMap::new();
    for (file, imports) in files {
        let ends = file.match_indices('/').map(|(at, _)| at + 1);
        for folder in ends.chain([0]).map(|end| &file[..end]) {
            let entry = |file: &str| {
                let name = file.strip_prefix(folder)?.split(['/', '.']).next();
                name.map(str::to_owned)
            };
            let from = entry(file).unwrap_or_default();
            let imports = imports
                .iter()
                .filter_map(|(to, by)| Some((entry(to)?, format!("{file}: {by}"))));
            let imports: Vec<_> = imports.filter(|(to, _)| *to != from).collect();
            folders
                .entry(folder)
                .or_default()
                .entry(from)
                .or_default()
                .extend(imports);
        }
    }
    folders
}

/// The steps of the longest chain of imports; an error if there is a circle.
fn floors(graph: &Graph) -> Result<usize> {
    let mut left = graph.clone();
    for count in 0.. {
        let all: BTreeSet<String> = left.keys().cloned().collect();
        if all.is_empty() {
            return Ok(count);
        }
        left.values_mut()
            .for_each(|imports| imports.retain(|to, _| all.contains(to)));
        left.retain(|_, imports| !imports.is_empty());
        if left.len() == all.len() {
            bail!("imports in a circle: {:#?}", without_roofs(left))
        }
    }
    unreachable!("the graph has an end")
}

/// A graph without what nothing imports.
fn without_roofs(mut graph: Graph) -> Graph {
    let imported: BTreeSet<String> = graph.values().flat_map(|to| to.keys().cloned()).collect();
    let before = graph.len();
    graph.retain(|from, _| imported.contains(from));
    match graph.len() == before {
        true => graph,
        false => without_roofs(graph),
    }
}

fn crate_of(files: &[(&str, &str)]) -> Graph {
    let owned = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
    imports(&files.iter().map(owned).collect())
}

fn imports_are_found() -> Result<()> {
    let graph = crate_of(&[
        (
            "lib.rs",
            "mod a;\npub use b::{inner::Name, Here};\nuse a::f;",
        ),
        (
            "a.rs",
            "use crate::{\n    Name,\n    c::{self, g},\n};\n// use crate::b;\nuse std::b;",
        ),
        (
            "b/mod.rs",
            "pub mod inner;\n#[cfg(test)]\nmod a;\npub struct Here;",
        ),
        (
            "b/inner.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\nfn f() { super::super::c::g() }",
        ),
        (
            "c.rs",
            "type T = Vec<crate::Here>;\npub(in crate::a) struct U;\nfn g() { my_crate::a(); }",
        ),
    ]);
    let all = graph
        .iter()
        .flat_map(|(from, to)| to.keys().map(move |to| format!("{from} {to}")));
    let all: Vec<String> = all.collect();
    let expected = [
        "a.rs b/inner.rs",
        "a.rs c.rs",
        "b/inner.rs c.rs",
        "c.rs b/mod.rs",
        "lib.rs a.rs",
    ];
    ensure!(all == expected, "{all:?}");
    Ok(())
}

fn circles_and_floors_are_found() -> Result<()> {
    let files = crate_of(&[
        ("a/w.rs", ""),
        ("a/x.rs", "use crate::b::y;"),
        ("b/y.rs", "use crate::c::f;"),
        ("c.rs", "use crate::a::w;"),
    ]);
    ensure!(floors(&files)? == 4, "no file is in a circle");
    let folders = folders(&files);
    ensure!(
        floors(&folders["a/"])? == 1 && folders.len() == 3,
        "{folders:?}"
    );
    let error = floors(&folders[""]).unwrap_err().to_string();
    ensure!(
        error.contains("a/x.rs: crate::b::y") && error.contains("c.rs: crate::a::w"),
        "{error}"
    );
    Ok(())
}
