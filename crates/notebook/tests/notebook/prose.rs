//! How the pages are written: in sentences that are read once. And the README is short.

use anyhow::Result;
use notebook::book::Book;

use crate::text::paragraphs;

/// Words of the README at most, without code and tables.
const README_WORDS: usize = 680;
/// Words of a sentence at most, but for a few of each page.
const SENTENCE_WORDS: usize = 28;
const LONG_SENTENCES: usize = 3;
/// They make sentences that are read twice, or persons of code.
const PERSONS: &str = include_str!("../../../../tests/persons.txt");

/// What is too long, and which words should be others.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let all_persons: Vec<&str> = PERSONS.split_whitespace().collect();
    let mut complaints = Vec::new();
    for page in book.pages()? {
        let (name, all) = (book.name(&page), paragraphs(&book.text(&page)?));
        for line in &all {
            let persons = words(line).filter(|word| all_persons.contains(&word.as_str()));
            complaints.extend(persons.map(|word| format!("{name} says {word:?}: {line}")));
        }
        let prose: Vec<&String> = all.iter().filter(|line| !line.contains(" | ")).collect();
        let length: usize = prose.iter().map(|line| words(line).count()).sum();
        if page == "../README" && length > README_WORDS {
            complaints.push(format!("{name} has {length} words, {README_WORDS} at most"));
        }
        let sentences = prose.iter().flat_map(|line| sentences(line));
        let is_long = |sentence: &String| words(sentence).count() > SENTENCE_WORDS;
        let long: Vec<String> = sentences.filter(is_long).collect();
        if long.len() > LONG_SENTENCES {
            complaints.push(format!(
                "{name}: more than {LONG_SENTENCES} sentences have more than {SENTENCE_WORDS} words: {long:#?}"
            ));
        }
    }
    Ok(complaints)
}

/// What has a letter or a digit in it, in small letters and without the signs around it.
fn words(line: &str) -> impl Iterator<Item = String> {
    let bare = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric());
        word.to_lowercase()
    };
    let words = line.split_whitespace().map(bare);
    words.filter(|word| !word.is_empty())
}

fn sentences(line: &str) -> Vec<String> {
    let (mut all, mut sentence) = (Vec::new(), String::new());
    for word in line.split_whitespace() {
        sentence += word;
        sentence.push(' ');
        let bare = word.trim_end_matches([')', '"', '*']);
        if bare.ends_with(['.', '?', '!']) {
            all.push(std::mem::take(&mut sentence));
        }
    }
    all.push(sentence);
    all
}
