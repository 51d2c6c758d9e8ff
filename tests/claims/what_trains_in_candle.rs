//! The tables of `notebooks-md/what-trains-in-candle.md` have exactly the rows of `rows.rs`, with the verdicts that are
//! computed here. So an update of candle changes the page.

mod networks;
#[macro_use]
mod row;
mod rows;

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{VarBuilder, VarMap, ops};
use concise::layers::{Linear, Relu, Sequential};
use concise::{DataParallel, Initializer, Sgd, Trainer};
use functional::{GradientError, candle, check_gradients, squared_error};

use crate::kit::{cpus, formula_tensor, has, largest_difference, root, times};
use row::{Output, Row, gradient, input};
use rows::{POINTS, of_candle_core, of_candle_nn};

trials![
    the_tables_are_what_candle_computes,
    the_points_are_what_candle_computes,
    the_forward_pass_of_conv1d_needs_a_contiguous_weight,
    the_page_names_the_versions,
    a_network_of_ones_own,
    a_padded_cloud_needs_a_maximum_that_shares,
    right_networks_are_not_refused,
    most_wrong_networks_are_refused,
];

/// In f64, or in f32 where f64 is an error.
fn verdict(row: &Row) -> Result<String> {
    let in_f64 = verdict_in(row, DType::F64, 1e-6)?;
    match in_f64.starts_with("error") {
        true => verdict_in(row, DType::F32, 0.05),
        false => Ok(in_f64),
    }
}

fn verdict_in(row: &Row, dtype: DType, tolerance: f64) -> Result<String> {
    let inputs = (1..).zip(&row.inputs);
    let inputs = inputs.map(|(s, dims)| input(s, dims, dtype));
    let inputs = inputs.collect::<candle_core::Result<Vec<_>>>()?;
    let Err(error) = check_gradients(&row.f, &inputs, tolerance) else {
        return Ok("right".into());
    };
    Ok(match error {
        GradientError::Wrong { gradient: None, .. } => "missing".into(),
        GradientError::Wrong {
            gradient: Some(gradient),
            difference,
            ..
        } => {
            // the same numbers, with gradients that are so many times as large
            let times = difference / gradient;
            let scaled = |x: &Tensor| (x * times)? + (x.detach() * (1. - times))?;
            let f = |xs: &[Tensor]| {
                let xs = xs.iter().map(scaled);
                (row.f)(&xs.collect::<candle_core::Result<Vec<_>>>()?)
            };
            match check_gradients(f, &inputs, tolerance) {
                Ok(()) if times != 0. => format!("wrong, {:.2} times", gradient / difference),
                _ => "wrong, no constant factor".into(),
            }
        }
        GradientError::Backward(error) | GradientError::Failed(error) => format!("error: {error}"),
        error @ GradientError::Incomparable(_) => error.to_string(),
    })
}

/// By hand, because each call draws another mask: the gradient of x · mask is the mask.
fn verdict_of_dropout(dropout: fn(&Tensor) -> Output) -> Result<String> {
    let x = Var::from_tensor(&(input(1, &[8, 8], DType::F64)? + 2.)?)?;
    let y = dropout(&x)?;
    let apart = ((gradient(&y, &x)? * x.as_tensor())? - y)?.abs()?;
    let right = apart.max_all()?.to_scalar::<f64>()? < 1e-12;
    Ok(if right { "right" } else { "wrong" }.into())
}

fn page() -> Result<String> {
    let page = root().join("notebooks-md/what-trains-in-candle.md");
    Ok(fs::read_to_string(page)?)
}

/// What the tables in a section of the page say, the folded one too: of each operation in each case. A row can name
/// several of both.
fn table(section: &str) -> Result<BTreeMap<(String, String), String>> {
    let page = page()?;
    let mut sections = page.split("\n## ");
    let rest = sections.find_map(|text| text.strip_prefix(&format!("{section}\n")));
    let lines = rest.context("no section")?.lines();
    let (mut all, mut fails) = (BTreeMap::new(), true);
    for line in lines.filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &[_, operations, cases, says, _, _] = &cells[..] else {
            anyhow::bail!("{section}: not four columns: {line}");
        };
        let in_order = fails || says == "right";
        ensure!(in_order, "{section}: below those that are right: {line}");
        fails = says != "right";
        for operation in operations.replace('`', "").split(", ") {
            for case in cases.split("; ") {
                let key = (operation.to_owned(), case.to_owned());
                let before = all.insert(key, says.to_owned());
                ensure!(before.is_none(), "{section}: {operation}, {case}: twice");
            }
        }
    }
    Ok(all)
}

/// Checks that a table has exactly these rows. It can have a part of the message of an error.
fn has_exactly(section: &str, computed: Vec<(String, &str, String)>) -> Result<()> {
    let mut written = table(section)?;
    let mut differences = Vec::new();
    for (operation, case, is) in computed {
        let says = written.remove(&(operation.clone(), case.to_owned()));
        let says = says.unwrap_or_else(|| "nothing".into());
        let part = says.strip_prefix("error: ").filter(|part| !part.is_empty());
        let agrees =
            says == is || is.starts_with("error") && part.is_some_and(|part| is.contains(part));
        if !agrees {
            differences.push(format!(
                "{operation}, {case}: the page says {says:?}, candle computes {is:?}"
            ));
        }
    }
    let left = written.into_keys();
    differences.extend(left.map(|row| format!("{row:?}: only in the page")));
    let differences = differences.join("\n");
    ensure!(differences.is_empty(), "{section}:\n{differences}");
    Ok(())
}

fn the_tables_are_what_candle_computes() -> Result<()> {
    let computed = |rows: Vec<Row>| -> Result<Vec<_>> {
        let verdicts = rows
            .iter()
            .map(|row| Ok((row.operation.clone(), row.case, verdict(row)?)));
        verdicts.collect()
    };
    let mut of_nn = computed(of_candle_nn())?;
    let layer = verdict_of_dropout(|x| candle_nn::Dropout::new(0.5).forward(x, true))?;
    let function = verdict_of_dropout(|x| ops::dropout(x, 0.5))?;
    of_nn.extend([
        ("Dropout".into(), "in training", layer),
        ("ops::dropout".into(), "in training", function),
    ]);
    let of_core = computed(of_candle_core())?;
    let count = |verdict: &str| {
        let all = of_nn.iter().chain(&of_core);
        all.filter(|(_, _, is)| is.starts_with(verdict)).count()
    };
    let [right, wrong, missing, error] = ["right", "wrong", "missing", "error"].map(count);
    let counts = format!(
        "{right} are right. {wrong} have a wrong gradient, {missing} have none, and {error} end in an error."
    );
    has(&in_one_line(&page()?), &counts)?;
    let cases = of_nn.len() + of_core.len();
    let counts = format!("Of {cases} cases, {wrong} have a wrong gradient and {missing} have none");
    has(
        &in_one_line(&fs::read_to_string(root().join("README.md"))?),
        &counts,
    )?;
    has_exactly("candle-nn", of_nn)?;
    has_exactly("candle-core", of_core)
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn the_points_are_what_candle_computes() -> Result<()> {
    let points = POINTS.iter().map(|(operation, point, numbers, f)| {
        let x = Var::new(*numbers, &Device::Cpu)?;
        let gradient = gradient(&f(&x)?, &x)?.to_vec1::<f32>()?.into_iter();
        let shown = gradient.map(|g| (f64::from(g) * 1000.).round() / 1000.);
        let shown: Vec<String> = shown.map(|g| g.to_string()).collect();
        Ok(((*operation).to_owned(), *point, shown.join(" and ")))
    });
    let points = points.collect::<Result<Vec<_>>>()?;
    has_exactly("What the comparison does not find", points)
}

/// The page says so: its gradient is wrong for this reason.
fn the_forward_pass_of_conv1d_needs_a_contiguous_weight() -> Result<()> {
    let x = input(1, &[2, 2, 9], DType::F32)?;
    let weight = input(2, &[2, 3, 3], DType::F32)?.transpose(0, 1)?;
    let of = |weight: &Tensor| x.conv1d(weight, 0, 1, 1, 1);
    let apart = largest_difference(&of(&weight)?, &of(&weight.contiguous()?)?)?;
    ensure!(apart > 0.1, "{apart}");
    Ok(())
}

fn the_page_names_the_versions() -> Result<()> {
    let (page, lock) = (page()?, fs::read_to_string(root().join("Cargo.lock"))?);
    for name in ["candle-core", "candle-nn"] {
        let after = lock.split_once(&format!("name = \"{name}\"\nversion = \""));
        let version = after.and_then(|(_, rest)| rest.split('"').next());
        has(&page, &format!("{name} {}", version.context(name)?))?;
    }
    Ok(())
}

fn a_network_of_ones_own() -> Result<()> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F64, &Device::Cpu);
    let conv = candle_nn::conv2d(1, 4, 3, Default::default(), vb.pp("conv"))?;
    let fc = candle_nn::linear(36, 10, vb.pp("fc"))?;
    let network = |x: &[Tensor]| {
        let h = conv.forward(&x[0])?.relu()?.max_pool2d(2)?;
        fc.forward(&h.flatten_from(1)?)
    };
    let x = Tensor::rand(0f64, 1., (2, 1, 8, 8), &Device::Cpu)?;
    let error = check_gradients(network, &[x], 1e-6).expect_err("max_pool2d");
    ensure!(error.to_string().ends_with("(0.25 times)"), "{error}");
    Ok(())
}

fn max(x: &Tensor, dim: usize) -> candle_core::Result<Tensor> {
    let max = x.max_keepdim(dim)?;
    let is_max = x.broadcast_eq(&max)?;
    let sum = is_max.where_cond(x, &x.zeros_like()?)?.sum(dim)?;
    sum / is_max.to_dtype(x.dtype())?.sum(dim)?
}

/// Clouds of two points, and the same padded to five by repeating a point: one gradient, or an error.
fn a_padded_cloud_needs_a_maximum_that_shares() -> Result<()> {
    type Maximum = fn(&Tensor) -> candle_core::Result<Tensor>;
    let gradients = |x: &Tensor, maximum: Maximum| {
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, move |vb| {
            let points = Sequential::new().add(Linear::new(3, 4, vb.pp("mlp"))?);
            let cloud = points.add(Relu).add(candle(maximum));
            Ok(cloud.add(Linear::new(4, 2, vb.pp("fc"))?))
        })?;
        let mut trainer = Trainer::new(&net, squared_error, Sgd::new(0.0));
        trainer.step(x, &formula_tensor(2, 1.0, &[4, 2])?)?;
        trainer.gradients()
    };
    let two = formula_tensor(1, 1.0, &[4, 2, 3])?;
    let last = two.narrow(1, 1, 1)?;
    let padded = Tensor::cat(&[&two, &last, &last, &last], 1)?;
    let error = gradients(&padded, |h| h.max(1)).err().context("refused")?;
    has(
        &error.to_string(),
        "where some numbers of the input are equal",
    )?;
    for (expected, found) in gradients(&two, |h| h.max(1))?
        .iter()
        .zip(gradients(&padded, |h| max(h, 1))?)
    {
        let apart = largest_difference(&expected.1, &found.1)?;
        ensure!(apart < 1e-6, "{}: {apart}", found.0);
    }
    Ok(())
}

/// A trainer takes a step of networks that are drawn from the rows that are right, of many sizes.
fn right_networks_are_not_refused() -> Result<()> {
    let mut refused = Vec::new();
    let first = std::env::var("FIRST")
        .ok()
        .and_then(|f| f.parse().ok())
        .unwrap_or(0);
    for seed in first..first + times(100) as u64 {
        if let Err(error) = networks::step(seed, false) {
            refused.push(format!("network {seed}: {error:#}"));
        }
    }
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    Ok(())
}

/// A lost quarter is seen in most of them, not in all.
fn most_wrong_networks_are_refused() -> Result<()> {
    let count = times(40);
    let is_refused = |seed: &u64| {
        let step = networks::step(*seed, true);
        step.is_err_and(|error| format!("{error:#}").contains("is wrong"))
    };
    let refused = (0..count as u64).filter(is_refused).count();
    ensure!(10 * refused >= 7 * count, "{refused} of {count}");
    Ok(())
}
