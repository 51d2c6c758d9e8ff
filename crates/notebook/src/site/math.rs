//! Formulas as MathML, which browsers show by themselves.

use anyhow::{Result, anyhow};
use math_core::{LatexToMathML, MathCoreConfig, MathDisplay};

/// What LaTeX means, as it can stand within Markdown.
///
/// # Errors
/// If it is not understood.
pub fn mathml(latex: &str, display: MathDisplay) -> Result<String> {
    let config = MathCoreConfig::default();
    let converter = LatexToMathML::new(config).map_err(|e| anyhow!("{e:?}"))?;
    let converted = converter.convert_with_local_state(latex, display);
    let converted = converted.map_err(|e| anyhow!("${latex}$: {e:?}"))?;
    Ok(protected(&converted.mathml))
}

/// With entities in place of what would be Markdown between the tags.
fn protected(mathml: &str) -> String {
    let (mut safe, mut in_tag, mut in_entity) = (String::new(), false, false);
    for c in mathml.chars() {
        match c {
            '<' => in_tag = true,
            '&' => in_entity = true,
            _ => {}
        }
        let keep = in_tag || in_entity || !c.is_ascii_punctuation();
        match keep {
            true if c == '\n' => safe.push(' '),
            true => safe.push(c),
            false => safe += &format!("&#{};", c as u32),
        }
        in_tag &= c != '>';
        in_entity &= c != ';';
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_is_no_markdown_any_more() -> Result<()> {
        let half = mathml(r"a_1 * \frac{1}{2}", MathDisplay::Inline)?;
        assert!(
            half.starts_with("<math><msub>") && half.contains("<mfrac>"),
            "{half}"
        );
        assert_eq!(
            protected("<mo a='*'>*</mo>&lt;_"),
            "<mo a='*'>&#42;</mo>&lt;&#95;"
        );
        Ok(())
    }

    #[test]
    fn what_is_no_formula_is_an_error() {
        let error = mathml(r"\frac{1", MathDisplay::Block).unwrap_err();
        assert!(error.to_string().contains(r"\frac{1"), "{error}");
    }
}
