//! The trait of processes that sum together. `mpi` implements it, and the tests do so with threads.

use crate::error::Error;
use crate::order::SumOrder;

/// Processes that sum together. All processes must make the same calls in the same order. A call in the
/// host's memory returns when all processes have made it.
pub trait ProcessGroup: Send {
    /// This process's number, from 0.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// Sums the vectors of all processes in this order, as [`SumOrder::sum`] does. The first vector of each process
    /// becomes the sum; the others are unspecified. All vectors of a process have the same length.
    ///
    /// # Errors
    /// In all processes, [`Error::LengthMismatch`] if one has another length, and [`Error::KindMismatch`] if
    /// one makes another call. [`Error::Process`], if the processes cannot reach each other.
    fn all_reduce(&mut self, vectors: &mut [&mut [f32]], order: &SumOrder) -> Result<(), Error>;

    /// Like [`all_reduce`](Self::all_reduce), but a process needs only its [part](SumOrder::part) of the sum; the other
    /// elements are unspecified. Unless a process group can do with less, it sums all.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    fn reduce_scatter(
        &mut self,
        vectors: &mut [&mut [f32]],
        order: &SumOrder,
    ) -> Result<(), Error> {
        self.all_reduce(vectors, order)
    }

    /// The `data` of all processes, in rank order; the lengths may differ.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), without [`Error::LengthMismatch`].
    fn all_gather(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Sums a few values over all processes, in rank order; all processes get the same bits.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), and [`Error::KindMismatch`] if the numbers of values differ.
    fn sum_values(&mut self, values: &mut [f64]) -> Result<(), Error> {
        let messages = self.all_gather(&pack(&[bits(values)]))?;
        let all = messages
            .iter()
            .map(|message| unpack(message)?.pop())
            .collect::<Option<Vec<_>>>();
        let sums = all.and_then(|all| sum_in_order(&all));
        values.copy_from_slice(&sums.ok_or(Error::KindMismatch)?);
        Ok(())
    }

    /// A new channel among the same processes, for another thread. Calls on different channels are
    /// independent. This is a call as well: all processes must duplicate in the same order.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    fn duplicate(&self) -> Result<Box<dyn ProcessGroup>, Error>;
}

/// The bits of values, as [`pack`] takes them.
pub(crate) fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The sums of vectors of [`bits`], added from the first vector to the last; `None`, if their lengths differ.
pub(crate) fn sum_in_order(all: &[Vec<u64>]) -> Option<Vec<f64>> {
    let mut vectors = all.iter();
    let values = vectors.next()?.iter().map(|bits| f64::from_bits(*bits));
    let mut sums: Vec<f64> = values.collect();
    for vector in vectors {
        if vector.len() != sums.len() {
            return None;
        }
        let values = vector.iter().map(|bits| f64::from_bits(*bits));
        sums.iter_mut().zip(values).for_each(|(sum, v)| *sum += v);
    }
    Some(sums)
}

/// Vectors as one message: their number, all lengths, all elements.
pub(crate) fn pack(vectors: &[Vec<u64>]) -> Vec<u8> {
    let lengths = vectors.iter().map(|vector| vector.len() as u64);
    [vectors.len() as u64]
        .into_iter()
        .chain(lengths)
        .chain(vectors.iter().flatten().copied())
        .flat_map(u64::to_le_bytes)
        .collect()
}

/// The vectors of a message from [`pack`]; `None`, if the message has another form.
pub(crate) fn unpack(message: &[u8]) -> Option<Vec<Vec<u64>>> {
    let (words, []) = message.as_chunks::<8>() else {
        return None;
    };
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (count, words) = words.split_first()?;
    let (lengths, mut words) = words.split_at_checked(usize::try_from(*count).ok()?)?;
    let mut vectors = Vec::new();
    for length in lengths {
        let (vector, rest) = words.split_at_checked(usize::try_from(*length).ok()?)?;
        vectors.push(vector.to_vec());
        words = rest;
    }
    words.is_empty().then_some(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_out_as_they_went_in_and_other_messages_do_not() {
        let vectors = [vec![1, u64::MAX], vec![], vec![3]];
        let message = pack(&vectors);
        assert_eq!(unpack(&message).unwrap(), vectors);
        for bad in [
            &message[1..],
            &message[8..],
            &message[..message.len() - 8],
            &[],
        ] {
            assert_eq!(unpack(bad), None);
        }
        let more = [7u64.to_le_bytes().to_vec(), message[8..].to_vec()].concat();
        assert_eq!(unpack(&more), None);
    }
}
