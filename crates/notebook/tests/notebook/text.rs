//! The text of a page as a reader sees it. Code, formulas, and what cells and programs printed are no text.

use notebook::links;
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// Stands for a piece of code or a formula.
const CODE: &str = "`code`";

/// Paragraphs, items and headings of a page, each in one line; the cells of a table's row have ` | ` between them.
pub fn paragraphs(markdown: &str) -> Vec<String> {
    let (mut all, mut line, mut skips) = (Vec::new(), String::new(), false);
    for event in Parser::new_ext(markdown, links::OPTIONS) {
        match event {
            Event::Start(Tag::CodeBlock(_) | Tag::Image { .. }) => skips = true,
            Event::End(TagEnd::CodeBlock | TagEnd::Image) => skips = false,
            Event::Text(text) if !skips => line += &text,
            Event::Code(_) | Event::InlineMath(_) => line += CODE,
            Event::SoftBreak | Event::HardBreak => line.push(' '),
            Event::End(TagEnd::TableCell) => line += " | ",
            Event::Start(Tag::Item | Tag::List(_))
            | Event::End(
                TagEnd::Paragraph
                | TagEnd::Heading(_)
                | TagEnd::Item
                | TagEnd::TableHead
                | TagEnd::TableRow,
            ) => all.push(std::mem::take(&mut line)),
            _ => {}
        }
    }
    all.push(line);
    let all = all.iter().map(|line| line.trim_end_matches([' ', '|']));
    let all = all.map(one_line);
    all.filter(|line| !line.is_empty()).collect()
}

/// The words with one blank between them.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
