// The same steps as with all of v, but each member keeps v of its part only. Some k do not divide n.

use std::ops::Range;

use anyhow::Result;
use lab::equal;

use super::exercise::{Member, member, step};

pub fn check() -> Result<()> {
    let sizes = [(3, 10), (4, 8), (1, 3), (3, 2)];
    sizes.iter().try_for_each(|&(k, n)| check_steps(k, n))
}

fn check_steps(k: usize, n: usize) -> Result<()> {
    let mut params: Vec<f32> = (0..n).map(|t| 1.0 + t as f32 / 3.0).collect();
    let mut v = vec![0.0; n];
    let mut members: Vec<Member> = (0..k).map(|i| member(i, k, &params)).collect();
    for (i, member) in members.iter().enumerate() {
        let sentence = format!("Member {i} of {k} begins with other parameters.");
        equal(&sentence, &member.params, &params)?;
        let sentence =
            format!("Member {i} of {k} begins with a wrong v. It needs v of its part only.");
        equal(&sentence, &member.v, &vec![0.0; part(i, k, n).len()])?;
    }

    let (lr, momentum) = (0.1, 0.9);
    for number in 1..=3 {
        let gradient = |j| (0..n).map(move |t| ((t * 7 + j * 5 + number * 3) as f32).sin());
        let grads: Vec<Vec<f32>> = (0..k).map(|j| gradient(j).collect()).collect();
        step(&mut members, &grads, lr, momentum);
        let old = params.clone();
        for t in 0..n {
            v[t] = momentum * v[t] + grads.iter().map(|grad| grad[t]).sum::<f32>();
            params[t] -= lr * v[t];
        }

        // each member updates its part
        for (i, member) in members.iter().enumerate() {
            let mine = part(i, k, n);
            let [yours, right] = [&member.params, &params].map(|all| &all[mine.clone()]);
            let own: Vec<f32> = mine.clone().map(|t| old[t] - lr * grads[i][t]).collect();
            let what = format!("After step {number}, part {i} of member {i} of {k}");
            if yours == own {
                let sentence = format!("{what} is updated with its own gradient.");
                equal(&sentence, yours, right)?;
            }
            let sentence = format!("{what}: v is not momentum · v + g, summed in order.");
            equal(&sentence, &member.v[..], &v[mine])?;
            let sentence = format!("{what} is not parameter − lr · v.");
            equal(&sentence, yours, right)?;
        }
        // each member copies the parts of the others
        for (i, member) in members.iter().enumerate() {
            for j in 0..k {
                let all = [&member.params, &old, &params];
                let [yours, old, right] = all.map(|all| &all[part(j, k, n)]);
                let mut sentence = format!("Part {j} of member {i} is not that of member {j}.");
                if yours == old {
                    sentence += " It is old, so the copies of the parameters drift apart.";
                    sentence +=
                        &format!(" Perhaps it was copied before member {j} had updated it.");
                }
                equal(&sentence, yours, right)?;
            }
        }
    }
    Ok(())
}

fn part(i: usize, k: usize, n: usize) -> Range<usize> {
    let start = |i: usize| i * (n / k) + i.min(n % k);
    start(i)..start(i + 1)
}
