// 7. Buckets that leave when they are complete
//
// The backward pass usually completes the gradient of the last parameter first,
// and that of parameter 0 last. When all gradients of a bucket are complete,
// the bucket can leave for its all-reduce. The backward pass goes on meanwhile
// (book: 13.7.1).
//
// `buckets` groups the parameters, from the last one to parameter 0. Parameter
// i has `sizes[i]` elements. A parameter goes into the newest bucket, if that
// bucket then has at most `limit` elements. Otherwise it begins a new bucket.
// So a parameter with more than `limit` elements is alone.
//
// `complete` is called once for each parameter, when its gradient is complete.
// It returns the number of the bucket that this gradient completes, or `None`.
// Count the missing gradients of each bucket, because the calls may come in any
// order.
//
// DDP of PyTorch counts in the same way. There a complete bucket also waits for
// the buckets before it. So all devices sum the buckets in the same order.

pub fn buckets(sizes: &[usize], limit: usize) -> Vec<Vec<usize>> {
    // gap: todo!("group the parameters, from the last one to parameter 0")
    let (mut buckets, mut used) = (Vec::<Vec<usize>>::new(), 0);
    for i in (0..sizes.len()).rev() {
        match buckets.last_mut() {
            Some(bucket) if used + sizes[i] <= limit => bucket.push(i),
            _ => {
                buckets.push(vec![i]);
                used = 0;
            }
        }
        used += sizes[i];
    }
    buckets
    // end of gap
}

pub struct Counters {
    buckets: Vec<Vec<usize>>,
    /// Number of gradients of each bucket that are not complete.
    missing: Vec<usize>,
}

impl Counters {
    pub fn new(buckets: Vec<Vec<usize>>) -> Self {
        let missing = buckets.iter().map(Vec::len).collect();
        Self { buckets, missing }
    }

    pub fn complete(&mut self, parameter: usize) -> Option<usize> {
        // gap: todo!("count, and return the bucket of `parameter` if it is complete now")
        let mut buckets = self.buckets.iter();
        let b = buckets.position(|bucket| bucket.contains(&parameter))?;
        self.missing[b] -= 1;
        (self.missing[b] == 0).then_some(b)
        // end of gap
    }
}
