// Products of few rows with AVX-512.
#include "skinny_avx512.hpp"

namespace placewright {

InstructionSet avx512_instructions() { return instruction_set_of<Avx512>("avx512"); }

}  // namespace placewright
