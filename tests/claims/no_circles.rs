//! No crate, folder or file imports one that imports it: read from the paths in `use` lines and in the code.
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
    floors_are_few,
    imports_are_found,
    circles_and_floors_are_found,
];

/// The crates whose files and folders are checked.
const CRATES: &[&str] = &["d2l", "functional", "notebook", "scratch"];

/// The most floors in each folder of a crate: a floor is a step of the longest chain of imports.
const FLOORS: &[(&str, usize)] = &[("functional", 8)];

/// What each crate, folder or file imports, and where.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// The names from the crate to a module or an item.
type Path = Vec<String>;

fn crates_import_in_no_circle() -> Result<()> {
    let mut crates = Graph::new();
    for entry in fs::read_dir(root().join("crates"))? {
        let path = entry?.path();
        let name = path.file_name().context("a name")?.to_string_lossy();
        let manifest = fs::read_to_string(path.join("Cargo.toml"))?;
        let dependency = |line: &str| {
            let to = line.split(['.', ' ', '=']).next().unwrap_or_default();
            (to.to_owned(), format!("{name}/Cargo.toml: {line}"))
        };
        crates.insert(name.to_string(), manifest.lines().map(dependency).collect());
    }
    ensure!(crates["scratch"].contains_key("functional"), "{crates:?}");
    has_no_circle(&crates)
}

fn files_and_folders_import_in_no_circle() -> Result<()> {
    for name in CRATES {
        let files = imports(&sources(name)?);
        has_no_circle(&files).context(*name)?;
        let mut folders = folders(&files).into_iter();
        folders.try_for_each(|folder| has_no_circle(&folder).context(*name))?;
    }
    Ok(())
}

fn floors_are_few() -> Result<()> {
    for (name, most) in FLOORS {
        for folder in folders(&imports(&sources(name)?)) {
            has_no_circle(&folder)?;
            let longest = longest_chain(&folder);
            ensure!(longest.len() <= *most, "{name}: {longest:?}");
        }
    }
    Ok(())
}

/// The files of a crate by their paths below `src`, with their texts.
fn sources(name: &str) -> Result<BTreeMap<String, String>> {
    let src = format!("crates/{name}/src");
    let read = |file: std::path::PathBuf| {
        let path = file.strip_prefix(root().join(&src))?.to_string_lossy();
        Ok((path.into_owned(), fs::read_to_string(&file)?))
    };
    invariants::files(&src)?.into_iter().map(read).collect()
}

/// The imports between the files of a crate.
fn imports(files: &BTreeMap<String, String>) -> Graph {
    let mut tests = BTreeSet::new();
    let mut code = BTreeMap::new();
    for (file, text) in files {
        let (outside, declared) = without_tests(text);
        code.insert(file.as_str(), outside);
        tests.extend(declared.map(|name| child(&module(file), name)));
    }
    code.retain(|file, _| !tests.contains(&module(file)));
    let modules: BTreeMap<Path, &str> = code.keys().map(|file| (module(file), *file)).collect();
    let (mut handed_on, mut imported) = (BTreeMap::new(), Vec::new());
    for (file, code) in &code {
        let is_face = file.ends_with("lib.rs") || file.ends_with("mod.rs");
        for (line, is_public, path) in paths(code) {
            let (path, alias) = path.split_once(" as ").unwrap_or((&path, ""));
            let Some(path) = from_the_crate(&module(file), path, &modules) else {
                continue;
            };
            match is_public && is_face {
                true => {
                    let name = if alias.is_empty() {
                        &path[path.len() - 1]
                    } else {
                        alias
                    };
                    handed_on.insert(child(&module(file), name), path);
                }
                false => imported.push((*file, line, path)),
            }
        }
    }
    let mut graph: Graph = code
        .keys()
        .map(|file| ((*file).to_owned(), BTreeMap::new()))
        .collect();
    for (file, line, mut path) in imported {
        let inner = |path: &Path| {
            (0..=path.len())
                .rev()
                .find(|n| modules.contains_key(&path[..*n]))
        };
        let mut to = inner(&path);
        while let Some(n) = to.filter(|n| *n < path.len())
            && let Some(defined) = handed_on.get(&path[..=n])
        {
            path = [defined, &path[n + 1..]].concat();
            to = inner(&path);
        }
        let to = to.map(|n| modules[&path[..n]]);
        if let Some(to) = to.filter(|to| *to != file) {
            let imports = graph.entry(file.to_owned()).or_default();
            imports
                .entry((*to).to_owned())
                .or_insert(format!("{file}:{line}"));
        }
    }
    graph
}

fn child(module: &[String], name: &str) -> Path {
    [module, &[name.to_owned()]].concat()
}

/// The module in a file.
fn module(file: &str) -> Path {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let names = path.split('/').filter(|name| *name != "lib");
    names.map(str::to_owned).collect()
}

/// A text, as many lines, without comments and without what is `#[cfg(test)]`; and the modules declared there.
fn without_tests(text: &str) -> (String, impl Iterator<Item = &str>) {
    let (mut code, mut modules) = (String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let start = line.trim_start();
        if start.starts_with("#[cfg(test)]") || start.starts_with("#[cfg(all(test") {
            for item in lines.by_ref() {
                code += "\n";
                let module = item
                    .split_once("mod ")
                    .map(|(_, name)| name.trim_end_matches(';'));
                modules.extend(module);
                let is_as_far_right =
                    item.len() - item.trim_start().len() == line.len() - start.len();
                if is_as_far_right && item.ends_with([';', '}', ',']) {
                    break;
                }
            }
        } else {
            code += line.split("//").next().unwrap_or_default();
        }
        code += "\n";
    }
    (code, modules.into_iter())
}

/// The paths in `use` and elsewhere: each with its line, and whether it is in a `pub use`.
fn paths(code: &str) -> Vec<(usize, bool, String)> {
    let mut paths = Vec::new();
    let mut lines = (1..).zip(code.lines());
    while let Some((number, line)) = lines.next() {
        let import = line.trim_start().split_once("use ");
        let import = import.filter(|(before, _)| before.is_empty() || before.starts_with("pub"));
        if let Some((public, import)) = import {
            let mut tree = import.to_owned();
            while !tree.ends_with(';') {
                tree += lines.next().map_or(";", |(_, line)| line.trim());
            }
            let leaves = leaves(&tree[..tree.len() - 1]).into_iter();
            paths.extend(leaves.map(|path| (number, !public.is_empty(), path)));
            continue;
        }
        let starts = ["crate::", "super::", "self::"].into_iter();
        for (at, _) in starts.flat_map(|start| line.match_indices(start)) {
            let in_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            if !line[..at].ends_with(in_path) {
                let len = line[at..].find(|c| !in_path(c)).unwrap_or(line.len() - at);
                paths.push((number, false, line[at..][..len].to_owned()));
            }
        }
    }
    paths
}

/// The paths of a `use`: for `a::{b, c::d}` they are `a::b` and `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.split_once('{') else {
        return vec![tree.trim().trim_end_matches("::self").to_owned()];
    };
    let mut depth = 0;
    let inside = inside.rsplit_once('}').map_or(inside, |(inside, _)| inside);
    let parts = inside.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    parts
        .flat_map(|part| leaves(&format!("{before}{part}")))
        .collect()
}

/// A path as it is from the crate on; none if it is another crate's.
fn from_the_crate(module: &[String], path: &str, modules: &BTreeMap<Path, &str>) -> Option<Path> {
    let names: Path = path.split("::").map(str::to_owned).collect();
    let up = names.iter().take_while(|name| *name == "super").count();
    match names[0].as_str() {
        "crate" => Some(names[1..].to_vec()),
        "self" => Some([module, &names[1..]].concat()),
        "super" => Some([&module[..module.len().checked_sub(up)?], &names[up..]].concat()),
        first => modules
            .get(&child(module, first))
            .map(|_| [module, &names].concat()),
    }
}

/// For each folder of a crate: the imports between what is in it. A file and the folder of its name are one.
fn folders(files: &Graph) -> Vec<Graph> {
    let ends = |file: &String| {
        file.match_indices('/')
            .map(|(at, _)| at + 1)
            .collect::<Vec<_>>()
    };
    let below = files
        .keys()
        .flat_map(|file| ends(file).into_iter().map(|end| &file[..end]));
    let all: BTreeSet<&str> = below.chain([""]).collect();
    let folder = |folder: &str| {
        let entry = |file: &str| {
            let name = file.strip_prefix(folder)?.split('/').next()?;
            Some(name.trim_end_matches(".rs").to_owned())
        };
        let mut graph = Graph::new();
        for (file, imports) in files {
            let Some(from) = entry(file) else { continue };
            let others = imports
                .iter()
                .filter_map(|(to, line)| Some((entry(to)?, line.clone())));
            let others = others.filter(|(to, _)| *to != from).collect::<Vec<_>>();
            graph.entry(from).or_default().extend(others);
        }
        graph
    };
    all.into_iter().map(folder).collect()
}

fn has_no_circle(graph: &Graph) -> Result<()> {
    let mut left = graph.clone();
    let imports_left =
        |left: &Graph, from: &String| left[from].keys().any(|to| left.contains_key(to));
    while let Some(done) = left.keys().find(|from| !imports_left(&left, from)).cloned() {
        left.remove(&done);
    }
    let Some(mut from) = left.keys().next() else {
        return Ok(());
    };
    let mut way: Vec<(&String, String)> = Vec::new();
    while way.iter().all(|(passed, _)| *passed != from) {
        let next = left[from].iter().find(|(to, _)| left.contains_key(*to));
        let (to, line) = next.context("it imports nothing that is left")?;
        way.push((from, format!("{from} imports {to} ({line})")));
        from = to;
    }
    let circle = way
        .into_iter()
        .skip_while(|(passed, _)| *passed != from)
        .map(|(_, line)| line);
    bail!("a circle: {}", circle.collect::<Vec<_>>().join(", "))
}

/// The longest chain of imports in a graph without circles.
fn longest_chain(graph: &Graph) -> Vec<&str> {
    fn from<'g>(graph: &'g Graph, name: &'g str) -> Vec<&'g str> {
        let below = graph.get(name).into_iter().flat_map(BTreeMap::keys);
        let longest = below.map(|to| from(graph, to)).max_by_key(Vec::len);
        [vec![name], longest.unwrap_or_default()].concat()
    }
    let chains = graph.keys().map(|name| from(graph, name));
    chains.max_by_key(Vec::len).unwrap_or_default()
}

fn crate_of(files: &[(&str, &str)]) -> Graph {
    let owned = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
    imports(&files.iter().map(owned).collect())
}

fn imports_are_found() -> Result<()> {
    let graph = crate_of(&[
        (
            "lib.rs",
            "mod a;\nmod b;\npub use b::{inner::Name, Here as There};\nuse a::f;",
        ),
        (
            "a.rs",
            "use crate::{\n    Name,\n    b::{self, Here},\n};\n// use crate::c;\nuse std::c;",
        ),
        (
            "b/mod.rs",
            "pub mod inner;\n#[cfg(test)]\nmod tests;\npub struct Here;",
        ),
        (
            "b/inner.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\nfn f() { super::super::c::g() }",
        ),
        ("b/tests.rs", "use crate::a;"),
        (
            "c.rs",
            "type T = Vec<crate::There>;\nfn g() { my_crate::a(); }",
        ),
    ]);
    let lines = graph.values().flat_map(|imports| imports.iter());
    let lines: Vec<String> = lines.map(|(to, line)| format!("{line} {to}")).collect();
    let expected = [
        "a.rs:1 b/inner.rs",
        "a.rs:1 b/mod.rs",
        "b/inner.rs:5 c.rs",
        "c.rs:1 b/mod.rs",
        "lib.rs:4 a.rs",
    ];
    ensure!(lines == expected, "{lines:?}");
    Ok(())
}

fn circles_and_floors_are_found() -> Result<()> {
    let files = crate_of(&[
        ("a/x.rs", "use crate::b::y;"),
        ("b/y.rs", "use crate::c::f;"),
        ("b/z.rs", ""),
        ("c.rs", "\nuse crate::a::w;"),
        ("a/w.rs", ""),
    ]);
    has_no_circle(&files)?;
    ensure!(longest_chain(&files) == ["a/x.rs", "b/y.rs", "c.rs", "a/w.rs"]);
    let [all, a, b] = &folders(&files)[..] else {
        bail!("three folders")
    };
    let error = has_no_circle(all).unwrap_err().to_string();
    let expected = "a circle: a imports b (a/x.rs:1), b imports c (b/y.rs:1), c imports a (c.rs:2)";
    ensure!(error == expected, "{error}");
    ensure!(longest_chain(a).len() == 1 && b.len() == 2, "{a:?}, {b:?}");
    Ok(())
}
