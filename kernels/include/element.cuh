// What a stored value is, by the numbers of program.Element: the macros ELEMENT, INPUT, OUTPUT and their like.
#pragma once

enum : int { F32 = 0, F16 = 1, BF16 = 2, F16_PAIR = 3, U8 = 4, S8 = 5 };
