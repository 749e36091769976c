//! The tensors of a file. Each is taken once, with its required type and shape.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::Fault;

/// Tensors that were not taken yet.
pub struct Tensors<'a> {
    left: BTreeMap<String, TensorView<'a>>,
}

/// A type of number that tensors hold.
pub trait Element: Copy {
    /// Name of the type in safetensors.
    const DTYPE: Dtype;

    /// From little-endian bytes, as many as the type has.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($($type:ty: $dtype:ident),* $(,)?) => {$(
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn from_bytes(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                Self::from_le_bytes(array)
            }
        }
    )*};
}

element!(f32: F32, i8: I8, u8: U8, i16: I16, u16: U16, i32: I32);

impl<'a> Tensors<'a> {
    /// All tensors of a file.
    pub fn new(file: &SafeTensors<'a>) -> Self {
        Self {
            left: file.tensors().into_iter().collect(),
        }
    }

    /// Whether there is a tensor of that name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.left.contains_key(name)
    }

    /// The numbers of a tensor, row by row.
    pub fn take_tensor<T: Element>(
        &mut self,
        name: &str,
        shape: &[usize],
    ) -> Result<Vec<T>, Fault> {
        let (found, numbers) = self.take_any::<T>(name, &format!("{shape:?}"))?;
        if found != shape {
            let expected = format!("shape {shape:?}");
            return Err(Fault::new(
                tensor_field(name),
                format!("shape {found:?}"),
                expected,
            ));
        }
        Ok(numbers)
    }

    /// The numbers of a tensor of one dimension.
    pub fn take_list<T: Element>(&mut self, name: &str) -> Result<Vec<T>, Fault> {
        let (found, numbers) = self.take_any::<T>(name, "[n]")?;
        if found.len() != 1 {
            let found = format!("shape {found:?}");
            return Err(Fault::new(tensor_field(name), found, "one dimension"));
        }
        Ok(numbers)
    }

    /// The only number of a tensor.
    pub fn take_one<T: Element>(&mut self, name: &str) -> Result<T, Fault> {
        let numbers = self.take_tensor::<T>(name, &[1])?;
        Ok(numbers[0])
    }

    /// Finite numbers, at most 10^6 in magnitude.
    pub fn take_floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Fault> {
        let numbers = self.take_tensor::<f32>(name, shape)?;
        match numbers.iter().position(|number| !is_usual(*number)) {
            None => Ok(numbers),
            Some(at) => {
                let field = format!("tensor `{name}`[{at}]");
                Err(Fault::new(
                    field,
                    numbers[at],
                    "a finite number of 1e6 at most",
                ))
            }
        }
    }

    /// Refuses tensors that were not taken.
    pub fn refuse_rest(self) -> Result<(), Fault> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => Err(Fault::new(
                tensor_field(name),
                "it in the file",
                "only the tensors that a model of this kind has",
            )),
        }
    }

    fn take_any<T: Element>(
        &mut self,
        name: &str,
        shape: &str,
    ) -> Result<(Vec<usize>, Vec<T>), Fault> {
        let Some(view) = self.left.remove(name) else {
            let expected = format!("{:?} numbers of shape {shape}", T::DTYPE);
            return Err(Fault::new(tensor_field(name), "no such tensor", expected));
        };
        if view.dtype() != T::DTYPE {
            let found = format!("numbers of type {:?}", view.dtype());
            return Err(Fault::new(
                tensor_field(name),
                found,
                format!("{:?}", T::DTYPE),
            ));
        }
        let chunks = view.data().chunks_exact(size_of::<T>());
        Ok((view.shape().to_vec(), chunks.map(T::from_bytes).collect()))
    }
}

/// Also false for NaN.
fn is_usual(number: f32) -> bool {
    number.abs() <= 1e6
}

fn tensor_field(name: &str) -> String {
    let name: String = name.chars().take(80).collect();
    format!("tensor `{}`", name.escape_debug())
}
