// 11. A sharded optimizer: each member keeps the momentum of its part only
//
// SGD with momentum keeps a number v for each parameter (book: 12.6). With g
// the sum of all members' gradients:
//
//     v = momentum · v + g
//     parameter = parameter − lr · v
//
// In data-parallel training each member keeps all of v, and all copies are
// equal. That is a waste of memory. In a sharded optimizer, member i keeps v of
// part i only: 1/k of it. A step has three parts:
//
// - The reduce-scatter: member i sums part i of all gradients.
// - Member i updates part i of v and of its parameters.
// - The all-gather: each member copies the other parts of the parameters from
//   the members that updated them.
//
// This is stage 1 of ZeRO. The parameter servers of the book's 13.7 keep parts
// in the same way. The result has the same bits as that of an optimizer that
// keeps all of v. So add the gradients in order, from member 0 on.
//
// `part` is the function of exercise 10. All members are in one memory here. So
// read and write them as slices, such as `members[j].params[range]`.

use std::ops::Range;

pub struct Member {
    /// All parameters.
    pub params: Vec<f32>,
    /// The v of this member's part of the parameters.
    pub v: Vec<f32>,
}

/// Member i of k, before the first step: v is zero.
pub fn member(i: usize, k: usize, params: &[f32]) -> Member {
    // gap: todo!("make member i with a copy of the parameters, and zeros for v of its part")
    Member {
        params: params.to_vec(),
        v: vec![0.0; part(i, k, params.len()).len()],
    }
    // end of gap
}

/// A step of all members. `grads[i]` is the gradient that member i computed, for all parameters.
pub fn step(members: &mut [Member], grads: &[Vec<f32>], lr: f32, momentum: f32) {
    // gap: todo!("sum and update part i on each member i, then copy the new parts to all members")
    let (k, n) = (members.len(), grads[0].len());
    for (i, member) in members.iter_mut().enumerate() {
        for (v, t) in member.v.iter_mut().zip(part(i, k, n)) {
            let g: f32 = grads.iter().map(|grad| grad[t]).sum();
            *v = momentum * *v + g;
            member.params[t] -= lr * *v;
        }
    }
    for i in 0..k {
        let range = part(i, k, n);
        let new = members[i].params[range.clone()].to_vec();
        for member in &mut *members {
            member.params[range.clone()].copy_from_slice(&new);
        }
    }
    // end of gap
}

fn part(i: usize, k: usize, n: usize) -> Range<usize> {
    let start = |i: usize| i * (n / k) + i.min(n % k);
    start(i)..start(i + 1)
}
