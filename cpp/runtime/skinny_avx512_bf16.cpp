// Products of few rows with AVX-512 and its dot products of bfloat16 pairs.
#include "skinny_avx512.hpp"

namespace placewright {

InstructionSet avx512_bf16_instructions() { return instruction_set_of<Avx512>("avx512_bf16"); }

}  // namespace placewright
