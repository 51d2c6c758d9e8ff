//! What counts as the same output. Words are equal, and integers; a decimal may differ by two units in its last
//! printed digit, since processors differ there. Times, speeds, names of devices and shares of cores are not
//! compared: a reader wants to see them, and they are different on every machine.

/// A word, a number or a sign of a line.
#[derive(Debug, PartialEq, Clone)]
enum Token {
    /// Compared to the letter: words, signs, integers.
    Word(String),
    /// A decimal, and one unit in its last digit.
    Decimal(f64, f64),
    /// Not compared.
    Anything,
}

/// Where two outputs differ, line by line, decimals by more than `within`: `None` if nowhere.
pub fn difference(expected: &str, got: &str, within: f64) -> Option<String> {
    lines(expected, got, |a, b| same_line(a, b, within))
}

/// The lines of two texts that are not the same, the first few of them: `None` if there are none.
pub fn lines(expected: &str, got: &str, same: impl Fn(&str, &str) -> bool) -> Option<String> {
    const SHOWN: usize = 6;
    let (a, b): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), got.lines().collect());
    let pairs = (0..a.len().max(b.len())).map(|i| (a.get(i), b.get(i)));
    let differing: Vec<_> = pairs
        .filter(|(a, b)| !a.zip(*b).is_some_and(|(a, b)| same(a, b)))
        .collect();
    let shown = differing.iter().take(SHOWN).flat_map(|(a, b)| {
        let line = |sign: &str, line: &Option<&&str>| line.map(|l| format!("  {sign} {l}\n"));
        [line("-", a), line("+", b)].into_iter().flatten()
    });
    let mut text: String = shown.collect();
    if differing.len() > SHOWN {
        text += &format!("  … and {} lines more\n", differing.len() - SHOWN);
    }
    (!differing.is_empty()).then_some(text)
}

fn same_line(a: &str, b: &str, within: f64) -> bool {
    let (a, b) = (compared(a), compared(b));
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
    let (mut text, mut rest) = (String::new(), svg);
    while let Some(first) = rest.chars().next() {
        let length = number_length(rest, false);
        text.push(if length > 0 { '0' } else { first });
        rest = &rest[length.max(first.len_utf8())..];
    }
    text
}

/// The tokens of a line, with `Anything` for what is not compared; several of them count as one.
fn compared(line: &str) -> Vec<Token> {
    let words = words(line);
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < words.len() {
        let (token, taken) = match uncompared(&words[at..]) {
            0 => (token(words[at]), 1),
            n => (Token::Anything, n),
        };
        at += taken;
        if token != Token::Anything || tokens.last() != Some(&Token::Anything) {
            tokens.push(token);
        }
    }
    tokens
}

/// How many words from here on are not compared, because of what they say together.
fn uncompared(words: &[&str]) -> usize {
    const TIMES: [&str; 14] = [
        "s", "sec", "secs", "second", "seconds", "ms", "µs", "μs", "us", "ns", "min", "minutes",
        "h", "hours",
    ];
    let is_time = |word: &str| TIMES.contains(&word);
    let is_decimal = |word: &str| matches!(number(word), Some((_, Some(_))));
    match words {
        // 1200 examples/sec, 1.3 sec/epoch, 16 GB/s
        [n, _, "/", time, ..] if number(n).is_some() && is_time(time) => 4,
        [n, time, "/", _, ..] if number(n).is_some() && is_time(time) => 4,
        // 5.2 ms
        [n, time, ..] if number(n).is_some() && is_time(time) => 2,
        // x1.9, 1.9×
        ["x" | "×", n, ..] if is_decimal(n) => 2,
        [n, "x" | "×", ..] if is_decimal(n) => 2,
        // 2 of 4 cores each
        [n, "of", m, "cores", ..] if number(n).is_some() && number(m).is_some() => 4,
        // cpu(0)
        ["cpu" | "cuda" | "gpu", "(", n, ")", ..] if number(n).is_some() => 4,
        ["Cpu", ..] => 1,
        _ => 0,
    }
}

/// Words, numbers (with sign and exponent) and single other signs; blanks only separate.
fn words(line: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), line.trim_start());
    let mut after_word = false;
    while let Some(first) = rest.chars().next() {
        let length = match number_length(rest, after_word) {
            0 if first.is_alphabetic() || first == '_' => word_length(rest),
            0 => first.len_utf8(),
            length => length,
        };
        words.push(&rest[..length]);
        after_word = rest[..length].ends_with(|c: char| c.is_alphanumeric() || c == ')')
            && !rest[length..].starts_with(char::is_whitespace);
        rest = rest[length..].trim_start();
    }
    words
}

/// Letters, and digits behind them as in `W2`; an `x` before digits stands alone, as in `x1.9`.
fn word_length(text: &str) -> usize {
    let other = |c: char| !c.is_alphanumeric() && c != '_';
    let length = text.find(other).unwrap_or(text.len());
    let digits = text.chars().nth(1).is_some_and(|c| c.is_ascii_digit());
    if text.starts_with('x') && digits {
        1
    } else {
        length
    }
}

/// The length of the number that a text begins with, or 0. A `-` directly behind a word is no sign.
fn number_length(text: &str, after_word: bool) -> usize {
    let digits = |from: usize| {
        let rest = &text[from..];
        rest.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len())
    };
    let sign = usize::from(text.starts_with('-') && !after_word);
    let mut length = sign + digits(sign);
    if length == sign {
        return 0;
    }
    if text[length..].starts_with('.') && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
    }
    let exponent = ["e-", "e+", "e"]
        .into_iter()
        .find(|e| text[length..].starts_with(e));
    match exponent
        .map(|e| length + e.len())
        .filter(|&from| digits(from) > 0)
    {
        Some(from) => from + digits(from),
        None => length,
    }
}

/// A number, and one unit of its last digit if it is no integer.
fn number(word: &str) -> Option<(f64, Option<f64>)> {
    let begins = word
        .trim_start_matches('-')
        .starts_with(|c: char| c.is_ascii_digit());
    let value: f64 = begins.then(|| word.parse().ok())??;
    let (mantissa, exponent) = word.split_once('e').unwrap_or((word, "0"));
    let decimals = mantissa
        .split_once('.')
        .map(|(_, decimals)| decimals.len() as i32);
    let is_integer = decimals.is_none() && !word.contains('e');
    let unit = 10f64.powi(exponent.parse::<i32>().ok()? - decimals.unwrap_or(0));
    Some((value, (!is_integer).then_some(unit)))
}

fn token(word: &str) -> Token {
    match number(word) {
        Some((value, Some(unit))) => Token::Decimal(value, unit),
        _ => Token::Word(word.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same() {
        for (a, b) in [
            ("loss 2.302, acc 0.100", "loss 2.304, acc 0.098"),
            ("[-0.0001, 1.5e-3]", "[0.0001,  1.7e-3]"),
            ("-0.0", "0.0"),
            ("9.9e-6", "1.0e-5"),
            ("1.3 sec, 42754 examples/sec", "0.9 sec, 9 examples/sec"),
            ("took 1.3 sec", "took 950 ms"),
            ("5.2ms", "33 µs"),
            ("x1.9 and 2.1×", "x0.7 and 12.0×"),
            ("16.2 GB/s", "9.1 GB/s"),
            (
                "on [cpu(0), cpu(1)], 2 of 4 cores each",
                "on [cuda(0), cuda(1)], 1 of 8 cores each",
            ),
            ("device: Cpu", "device: cuda(0)"),
            ("1.3 sec/epoch on [cpu(0)]", "2.7 sec/epoch on [cpu(3)]"),
            ("a   b", "  a b"),
            ("W2 (4×5)", "W2 (4×5)"),
        ] {
            assert_eq!(difference(a, b, 0.0), None, "{a:?}, {b:?}");
        }
    }

    #[test]
    fn what_is_not_the_same() {
        for (a, b) in [
            ("loss 2.302", "loss 2.305"),
            ("loss 2.302", "loss nan"),
            ("1.5e-3", "1.5e-4"),
            ("60000 examples", "60001 examples"),
            ("3", "3.0"),
            ("0.3", "0.45555"),
            ("-0.5", "0.5"),
            ("4x5", "4x6"),
            ("4×5", "4×6"),
            ("W1", "W2"),
            ("2 of 4 devices", "1 of 4 devices"),
            ("1.3 sec", "1.3 epochs"),
            ("3-5", "3-6"),
            ("b1 weight", "b1 grad"),
            ("one\ntwo", "one"),
            ("one", "one\ntwo"),
        ] {
            assert!(difference(a, b, 0.0).is_some(), "{a:?}, {b:?}");
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
        assert_eq!(
            difference(a, b, 0.0).unwrap(),
            "  - loss 2.1\n  + loss 3.1\n  + more\n"
        );
        let many = (0..9).map(|i| format!("{i}\n")).collect::<String>();
        assert!(
            difference(&many, "", 0.0)
                .unwrap()
                .ends_with("  - 5\n  … and 3 lines more\n")
        );
    }

    #[test]
    fn of_pictures_all_but_the_numbers() {
        let a = without_numbers(r#"<path d="M0,1.5L-2,3" fill="red"/>"#);
        assert_eq!(a, without_numbers(r#"<path d="M7,1L2.25,3" fill="red"/>"#));
        assert_ne!(a, without_numbers(r#"<path d="M7,1L2.25,3" fill="blue"/>"#));
        assert_ne!(
            a,
            without_numbers(r#"<path d="M7,1L2.25,3L1,1" fill="red"/>"#)
        );
    }
}
