//! Rules for the same output. Words are equal, and integers; a decimal may differ by two units in its last printed
//! digit, since processors differ there. Times, speeds, names of devices and shares of cores are not compared: a reader
//! wants to see them, and they are different on every machine.

use regex::Regex;

/// A word, a number or a sign of a line.
#[derive(Debug, PartialEq)]
enum Token<'a> {
    /// Compared to the letter: words, signs, integers.
    Word(&'a str),
    /// A decimal, and one unit in its last digit.
    Decimal(f64, f64),
    /// Not compared.
    Anything,
}

const NUMBER: &str = r"-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?";
const TIME: &str = "(?:s|secs?|seconds?|ms|µs|μs|us|ns|min|minutes|h|hours)";

/// The parts of a line, blanks aside. Several in a row that are not compared are one.
fn part() -> Regex {
    let kinds = [
        // 1200 examples/sec, 16 GB/s
        format!(r"{NUMBER}\s*\w+\s*/\s*{TIME}\b"),
        // 5.2 ms, 1.3 sec/epoch
        format!(r"{NUMBER}\s*{TIME}\b(?:\s*/\s*\w+)?"),
        // x1.9, 1.9×
        r"[x×]\s*-?[0-9]+\.[0-9]+".into(),
        r"-?[0-9]+\.[0-9]+\s*(?:x\b|×)".into(),
        // 2 of 4 cores each
        format!(r"{NUMBER}\s*of\s*{NUMBER}\s*(?:cores|hyperthreads)\b(?:\s*each)?"),
        // cpu(0)
        format!(r"(?:cpu|cuda|gpu)\s*\(\s*{NUMBER}\s*\)"),
        r"Cpu\b".into(),
    ];
    let uncompared = kinds.join("|");
    regex(&format!(
        r"(?<uncompared>(?:(?:{uncompared})\s*)+)|[\p{{L}}_]\w*|(?<number>{NUMBER})|\S"
    ))
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("it is written here")
}

/// Lines where two outputs differ, decimals by more than `within`: `None` if nowhere.
pub fn difference(expected: &str, got: &str, within: f64) -> Option<String> {
    let part = part();
    lines(expected, got, |a, b| same_line(&part, a, b, within))
}

/// The lines of two texts that are not the same: `None` if there are none.
pub fn lines(expected: &str, got: &str, same: impl Fn(&str, &str) -> bool) -> Option<String> {
    let a: Vec<&str> = expected.lines().collect();
    let b: Vec<&str> = got.lines().collect();
    let mut text = String::new();
    for i in 0..a.len().max(b.len()) {
        let a = a.get(i);
        let b = b.get(i);
        if !a.zip(b).is_some_and(|(a, b)| same(a, b)) {
            text.extend(a.map(|line| format!("  - {line}\n")));
            text.extend(b.map(|line| format!("  + {line}\n")));
        }
    }
    (!text.is_empty()).then_some(text)
}

fn same_line(part: &Regex, a: &str, b: &str, within: f64) -> bool {
    let a = tokens(part, a);
    let b = tokens(part, b);
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same(a, b, within))
}

fn same(a: &Token, b: &Token, within: f64) -> bool {
    match (a, b) {
        (Token::Decimal(a, unit_a), Token::Decimal(b, unit_b)) => {
            // half a unit more, because neither the decimals nor their difference are exact in binary
            (a - b).abs() <= within.max(2.5 * unit_a.min(*unit_b))
        }
        _ => a == b,
    }
}

/// A picture's text with a sign for each number: what is compared of it.
pub fn without_numbers(svg: &str) -> String {
    regex(NUMBER).replace_all(svg, "0").into_owned()
}

fn tokens<'a>(part: &Regex, line: &'a str) -> Vec<Token<'a>> {
    let token = |part: regex::Captures<'a>| {
        let word = part.get(0).expect("all of it").as_str();
        if part.name("uncompared").is_some() {
            Token::Anything
        } else if part.name("number").is_some() {
            decimal(word).unwrap_or(Token::Word(word))
        } else {
            Token::Word(word)
        }
    };
    part.captures_iter(line).map(token).collect()
}

/// A number with one unit of its last digit, unless it is an integer.
fn decimal(number: &str) -> Option<Token<'_>> {
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let (_, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_integer = decimals.is_empty() && !number.contains('e');
    let unit = 10f64.powi(exponent.parse::<i32>().ok()? - decimals.len() as i32);
    (!is_integer).then_some(Token::Decimal(number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same() {
        for line in [
            "loss 2.302, acc 0.100 | loss 2.304, acc 0.098",
            "[-0.0001, 1.5e-3] | [0.0001,  1.7e-3]",
            "-0.0 | 0.0",
            "9.9e-6 | 1.0e-5",
            "1.3 sec, 42754 examples/sec | 0.9 sec, 9 examples/sec",
            "took 1.3 sec | took 950 ms",
            "5.2ms | 33 µs",
            "x1.9 and 2.1× | x0.7 and 12.0×",
            "16.2 GB/s | 9.1 GB/s",
            "on [cpu(0), cpu(1)], 2 of 4 cores each | on [cuda(0), cuda(1)], 1 of 8 cores each",
            "on [cpu(0)], 2 of 2 cores each | on [cpu(0)], 4 of 4 cores each",
            "on [cpu(0)], 2 of 2 cores each | on [cpu(0)], 2 of 2 hyperthreads each",
            "device: Cpu | device: cuda(0)",
            "1.3 sec/epoch on [cpu(0)] | 2.7 sec/epoch on [cpu(3)]",
            "a   b |   a b",
            "W2 (4×5) | W2 (4×5)",
        ] {
            let (a, b) = line.split_once(" | ").unwrap();
            assert_eq!(difference(a, b, 0.0), None, "{line:?}");
        }
    }

    #[test]
    fn what_is_not_the_same() {
        for line in [
            "loss 2.302 | loss 2.305",
            "loss 2.302 | loss nan",
            "1.5e-3 | 1.5e-4",
            "60000 examples | 60001 examples",
            "3 | 3.0",
            "0.3 | 0.45555",
            "-0.5 | 0.5",
            "4x5 | 4x6",
            "4×5 | 4×6",
            "W1 | W2",
            "2 of 4 devices | 1 of 4 devices",
            "1.3 sec | 1.3 epochs",
            "3-5 | 3-6",
            "b1 weight | b1 grad",
            "one\ntwo | one",
            "one | one\ntwo",
        ] {
            let (a, b) = line.split_once(" | ").unwrap();
            assert!(difference(a, b, 0.0).is_some(), "{line:?}");
        }
    }

    #[test]
    fn what_training_amplifies_may_differ_by_more() {
        let difference = |b| difference("epoch 3, test acc 0.416", b, 0.1);
        assert_eq!(difference("epoch 3, test acc 0.510"), None);
        assert!(difference("epoch 3, test acc 0.530").is_some());
        assert!(difference("epoch 4, test acc 0.416").is_some());
    }

    #[test]
    fn a_difference_shows_the_lines() {
        let (a, b) = ("same 1.0\nloss 2.1\nend", "same 1.1\nloss 3.1\nend\nmore");
        let lines = "  - loss 2.1\n  + loss 3.1\n  + more\n";
        assert_eq!(difference(a, b, 0.0).unwrap(), lines);
    }

    #[test]
    fn of_pictures_all_but_the_numbers() {
        let a = without_numbers(r#"<path d="M0,1.5L-2,3" fill="red"/>"#);
        for (same, b) in [
            (true, r#"<path d="M7,1L2.25,3" fill="red"/>"#),
            (false, r#"<path d="M7,1L2.25,3" fill="blue"/>"#),
            (false, r#"<path d="M7,1L2.25,3L1,1" fill="red"/>"#),
        ] {
            assert_eq!(a == without_numbers(b), same, "{b}");
        }
    }
}
