//! No crate, folder or file imports one that imports it: read from the paths in `use` and elsewhere in the code.
//!
//! Not seen are calls of methods, and what a macro or a glob brings.
//!
//! A `lib.rs` or `mod.rs` is a face: its `pub use` is no import, and a name that it hands on is imported from the file
//! that defines it. `mod` is no import, and what is `#[cfg(test)]` is not read. The code is as rustfmt writes it.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::invariants::{self, leaves, split_last};
use crate::kit::{has, root};

trials![
    crates_import_in_no_circle,
    files_and_folders_import_in_no_circle,
    imports_are_found,
    each_kind_of_circle_is_found,
    circles_and_floors_are_found,
];

/// For each crate, folder or file: what it imports, and by which line or path.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// The file of each module. The module of `lib.rs` is "".
type Modules<'a> = BTreeMap<String, &'a String>;

fn crates_import_in_no_circle() -> Result<()> {
    let mut crates = Graph::new();
    for entry in fs::read_dir(root().join("crates"))? {
        let folder = entry?;
        let manifest = fs::read_to_string(folder.path().join("Cargo.toml"))?;
        let dependency = |line: &str| (line.split('.').next().unwrap_or(line).into(), line.into());
        let name = folder.file_name().to_string_lossy().into_owned();
        crates.insert(name, manifest.lines().map(dependency).collect());
    }
    ensure!(
        crates["scratch"].contains_key("data-parallel-functional"),
        "{crates:?}"
    );
    floors(&crates).map(drop)
}

fn files_and_folders_import_in_no_circle() -> Result<()> {
    for (name, _) in invariants::IMPORTS {
        let src = invariants::src(name);
        let mut sources = BTreeMap::new();
        for file in invariants::files(&src)? {
            let path = file.strip_prefix(root().join(&src))?.to_string_lossy();
            if !path.contains("tests") {
                sources.insert(path.into_owned(), fs::read_to_string(&file)?);
            }
        }
        let files = imports(&sources);
        floors(&files).context(name)?;
        for (folder, graph) in folders(&files) {
            floors(&graph).with_context(|| format!("{name}/{folder}"))?;
        }
    }
    Ok(())
}

/// The imports between the files of a crate.
fn imports(files: &BTreeMap<String, String>) -> Graph {
    let code: Vec<(&String, String)> = files
        .iter()
        .map(|(file, text)| (file, without_tests(text)))
        .collect();
    let has_lib = files.contains_key("lib.rs");
    let modules: Modules = files
        .keys()
        .map(|file| (module(file, has_lib), file))
        .collect();
    let (mut handed_on, mut imported) = (BTreeMap::new(), Vec::new());
    for (file, code) in &code {
        let module = module(file, has_lib);
        let is_face = file.ends_with("lib.rs") || file.ends_with("mod.rs");
        let mut names = BTreeMap::new();
        for use_of in uses(code) {
            let Some(path) = from_the_crate(&module, &use_of.path, &modules) else {
                continue;
            };
            let name = split_last(&path).1.to_owned();
            if use_of.is_public && is_face {
                handed_on.insert(inside(&module, &name), path);
            } else {
                names.insert(name, path.clone());
                imported.push((*file, use_of.path, path));
            }
        }
        for written in paths(code) {
            let (first, rest) = written.split_once("::").expect("a path");
            let path = match names.get(first) {
                Some(module) => Some(inside(module, rest)),
                None => from_the_crate(&module, &written, &modules),
            };
            imported.extend(path.map(|path| (*file, written, path)));
        }
    }
    let all = files.keys().map(|file| (file.clone(), BTreeMap::new()));
    let mut graph: Graph = all.collect();
    for (from, written, path) in imported {
        let to = file_of(&path, &modules, &handed_on);
        if to != from {
            let imports = graph.entry(from.clone()).or_default();
            imports.insert(to.clone(), written);
        }
    }
    graph
}

/// The module in a file. A `main.rs` beside a `lib.rs` is a crate of its own, which nothing imports.
fn module(file: &str, has_lib: bool) -> String {
    match file {
        "lib.rs" => String::new(),
        "main.rs" if !has_lib => String::new(),
        _ => {
            let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
            path.replace('/', "::")
        }
    }
}

/// A path that is written in a module.
fn inside(module: &str, path: &str) -> String {
    let path = format!("{module}::{path}");
    path.trim_start_matches("::").to_owned()
}

/// The file that defines what a path names, or the innermost module in it.
fn file_of<'a>(
    path: &str,
    modules: &Modules<'a>,
    handed_on: &BTreeMap<String, String>,
) -> &'a String {
    match (modules.get(path), handed_on.get(path)) {
        (Some(file), _) => file,
        (None, Some(defined)) => file_of(defined, modules, handed_on),
        (None, None) => file_of(split_last(path).0, modules, handed_on),
    }
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

/// A path of a `use`, and whether others can import it from here.
struct Use {
    path: String,
    is_public: bool,
}

/// The tree behind a line's `use`, and whether that is public.
fn use_in(line: &str) -> Option<(&str, bool)> {
    let (before, tree) = line.trim().split_once("use ")?;
    ["", "pub ", "pub(crate) "]
        .contains(&before)
        .then_some((tree, !before.is_empty()))
}

/// The paths of all `use` in the code.
fn uses(code: &str) -> Vec<Use> {
    let mut uses = Vec::new();
    let mut lines = code.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some((tree, is_public)) = use_in(line) else {
            continue;
        };
        let mut tree = tree.to_owned();
        while !tree.ends_with(';') {
            tree += lines.next().unwrap_or(";");
        }
        let leaves = leaves(tree.trim_end_matches(';')).into_iter();
        uses.extend(leaves.map(|path| Use { path, is_public }));
    }
    uses
}

/// The paths in the code outside of `use`, of two names or more. What `pub(in …)` names is no import.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        if use_in(line).is_some() {
            if !line.trim_end().ends_with(';') {
                lines.find(|line| line.trim_end().ends_with(';'));
            }
            continue;
        }
        let line = line.replace("(in crate::", "(");
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        // a global path begins with `::`; `::<` stands behind a name, and a macro puts a name behind `super::`
        let words = words.filter(|word| !word.starts_with(':'));
        let paths_here = words.map(|word| word.trim_end_matches(':'));
        paths.extend(
            paths_here
                .filter(|word| word.contains("::"))
                .map(str::to_owned),
        );
    }
    paths
}

/// A path as it is from the crate on; none if it is another crate's.
fn from_the_crate(module: &str, path: &str, modules: &Modules) -> Option<String> {
    if let Some(path) = path.strip_prefix("crate::") {
        return Some(path.to_owned());
    }
    let (mut module, mut rest) = (module, path.trim_start_matches("self::"));
    while let Some(path) = rest.strip_prefix("super::") {
        (module, rest) = (split_last(module).0, path);
    }
    let first = rest.split("::").next().unwrap_or(rest);
    let is_own = rest != path || modules.contains_key(&inside(module, first));
    is_own.then(|| inside(module, rest))
}

/// For each folder of a crate: the imports between what is in it. A file and the folder of its name are one.
fn folders(files: &Graph) -> BTreeMap<String, Graph> {
    let mut folders = BTreeMap::<String, Graph>::new();
    for (file, imports) in files {
        for (to, by) in imports {
            let names = [file, to].map(|file| file.trim_end_matches(".rs").split('/'));
            let [from, to] = names.map(Iterator::collect::<Vec<_>>);
            let depth = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(from_here), Some(to_here)) = (from.get(depth), to.get(depth)) {
                let folder = folders.entry(from[..depth].join("/")).or_default();
                let imports = folder.entry((*from_here).to_owned()).or_default();
                imports.insert((*to_here).to_owned(), format!("{file}: {by}"));
            }
        }
    }
    folders
}

/// The steps of the longest chain of imports; an error if there is a circle.
fn floors(graph: &Graph) -> Result<usize> {
    let mut known = BTreeMap::new();
    for name in graph.keys() {
        floor(graph, name, &mut known)?;
    }
    Ok(known.into_values().max().unwrap_or(0))
}

/// The floor of one: above all that it imports. `known` has the others that were found, and 0 for those on the way here.
fn floor(graph: &Graph, name: &str, known: &mut BTreeMap<String, usize>) -> Result<usize> {
    match known.get(name) {
        Some(0) => bail!("{name}, which is a circle"),
        Some(floor) => return Ok(*floor),
        None => known.insert(name.to_owned(), 0),
    };
    let mut highest = 0;
    for (to, by) in graph.get(name).into_iter().flatten() {
        let below = floor(graph, to, known);
        highest = highest.max(below.with_context(|| format!("{name} imports ({by})"))?);
    }
    known.insert(name.to_owned(), highest + 1);
    Ok(highest + 1)
}

fn crate_of(files: &[(&str, &str)]) -> Graph {
    let owned = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
    imports(&files.iter().map(owned).collect())
}

/// The imports of a graph, in words.
fn said(graph: &Graph) -> String {
    let all = graph
        .iter()
        .flat_map(|(from, to)| to.keys().map(move |to| format!("{from} {to}")));
    all.collect::<Vec<String>>().join(", ")
}

fn imports_are_found() -> Result<()> {
    let a = "use crate::{\n    Name,\n    c::{self, g},\n};\n// use crate::b;\nuse std::b;";
    let inner = "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\nfn f() { super::super::c::g() }";
    let c = "type T = Vec<crate::Here>;\npub(in crate::a) struct U;\nfn g() { my_crate::a(); }";
    let graph = crate_of(&[
        (
            "lib.rs",
            "mod a;\npub use b::{inner::Name, Here};\nuse a::f;",
        ),
        ("a.rs", a),
        (
            "b/mod.rs",
            "pub mod inner;\n#[cfg(test)]\nmod a;\npub struct Here;",
        ),
        ("b/inner.rs", inner),
        ("c.rs", c),
    ]);
    let all = said(&graph);
    let expected = "a.rs b/inner.rs, a.rs c.rs, b/inner.rs c.rs, c.rs b/mod.rs, lib.rs a.rs";
    ensure!(all == expected, "{all}");
    Ok(())
}

/// Files that import each other, in each way that is seen.
fn each_kind_of_circle_is_found() -> Result<()> {
    let back = ("b.rs", "use crate::a;");
    let child = (
        "run/start.rs",
        "use super::Run;\npub fn begin(run: &Run) {}",
    );
    for files in [
        &[("a.rs", "use crate::b::g;"), back][..],
        &[("a.rs", "fn f() { crate::b::g() }"), back],
        &[("a.rs", "use super::b;\nfn f() { b::g() }"), back],
        &[("a.rs", "fn f(g: super::b::G) {}"), back],
        // a path with types behind it, and a `use` with a comment
        &[("a.rs", "fn f() { crate::b::g::<u8>() }"), back],
        &[
            ("a.rs", "use std::fmt; // why\nfn f() { crate::b::g() }"),
            back,
        ],
        // a parent and its child: with the child's name in front, in a `use` and in the code
        &[("run.rs", "mod start;\nuse start::begin;"), child],
        &[
            ("run.rs", "mod start;\nfn f() { start::begin(&Run) }"),
            child,
        ],
        &[
            ("run.rs", "mod start;\nfn f() { self::start::begin(&Run) }"),
            child,
        ],
        &[
            ("run/mod.rs", "mod start;\nfn f() { start::begin(&Run) }"),
            child,
        ],
        &[("run/mod.rs", "mod start;\ntype S = Vec<start::S>;"), child],
        // through the name of a module that is imported: x → a → a/deep → x
        &[
            ("x.rs", "use crate::a;\nfn f() { a::deep::g() }"),
            ("a.rs", "pub mod deep;"),
            ("a/deep.rs", "use crate::x;"),
        ],
    ] {
        let files = [&[("lib.rs", "")], files].concat();
        let error = floors(&crate_of(&files)).err();
        let error = error.with_context(|| format!("no circle in {files:?}"))?;
        has(&format!("{error:#}"), "which is a circle")?;
    }
    // a program without a library
    let program = [
        ("main.rs", "mod a;\nfn f() { a::g() }"),
        ("a.rs", "use crate::f;"),
    ];
    ensure!(floors(&crate_of(&program)).is_err(), "main.rs");
    Ok(())
}

fn circles_and_floors_are_found() -> Result<()> {
    let files = crate_of(&[
        ("lib.rs", ""),
        ("a/w.rs", ""),
        ("a/x.rs", "use crate::b::y;\nuse super::w;"),
        ("b/y.rs", "use crate::c::f;"),
        ("c.rs", "use crate::a::w;"),
    ]);
    ensure!(floors(&files)? == 4, "no file is in a circle");
    let folders = folders(&files);
    ensure!(floors(&folders["a"])? == 2, "{folders:?}");
    ensure!(folders.len() == 2, "{folders:?}");
    let error = format!("{:#}", floors(&folders[""]).unwrap_err());
    has(&error, "a/x.rs: crate::b::y")?;
    has(&error, "c.rs: crate::a::w")
}
